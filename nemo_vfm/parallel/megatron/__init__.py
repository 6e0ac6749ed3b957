# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Carries out a model's declared plan with Megatron-Core; imported only where a recipe chooses it."""
