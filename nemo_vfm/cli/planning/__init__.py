# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Plans the layouts of a recipe on a number of GPUs, and shows what they cost: a table, JSON or an ingredient."""
