# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Holds features of different lengths: jagged tensors, deduplicated rows, embedding tables. It needs torch alone."""
