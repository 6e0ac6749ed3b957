# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Grows populations of programming tasks by what models make of earlier ones (Genetic Instruct, 2407.21077)."""
