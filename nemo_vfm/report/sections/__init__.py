# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Holds one file per section, found by page.py: `ORDER` and `BUDGET_MB` place it, `sections` renders a run."""
