# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Predicts what products in FP8 save and cost: seconds, bytes, and from which width they pay."""
