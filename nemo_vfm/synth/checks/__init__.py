# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Checks what a model wrote, without asking a model: programs, instructions, calls, final answers and quotations."""
