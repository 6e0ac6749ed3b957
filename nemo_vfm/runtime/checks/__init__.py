# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Checks what a constructor cannot see: how the parts of a recipe fit each other, its paths and its GPUs."""
