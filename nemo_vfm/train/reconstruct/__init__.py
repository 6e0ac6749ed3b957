# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Trains autoencoders: the task, the terms of the loss, and what is measured on held-out clips."""
