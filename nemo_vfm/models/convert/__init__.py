# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Converts other frameworks' checkpoints to our weights and back; files are read as data and never executed."""
