# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Queries, keys and values of a sequence whose tokens are split over devices in, full or causal attention out."""
