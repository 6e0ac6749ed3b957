# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Implements measures, one per file: arrays to plain numbers and names, without any model."""
