# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A recipe and a number of GPUs in, the layouts that fit and what they cost, as a table, JSON or an ingredient, out."""
