# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Removes stripes and finds bars in frames, by arithmetic on arrays and tensors only."""
