# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Frames in, frames without stripes or bars out; arithmetic on arrays and tensors only."""
