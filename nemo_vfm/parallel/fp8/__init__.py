# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Computes matrix products in FP8: scales, casts, amax histories and linears, on any device."""
