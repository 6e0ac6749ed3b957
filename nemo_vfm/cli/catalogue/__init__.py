# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Lists the recipes, ingredients and constructors that a user can choose from: for explain, schema and show."""
