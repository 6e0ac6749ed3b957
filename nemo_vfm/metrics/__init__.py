# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Measures, one file each: arrays in, plain numbers and names out, no model asked."""
