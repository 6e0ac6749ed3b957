# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Recipes, ingredients and constructors in, what there is to choose from out: for explain, schema and show."""
