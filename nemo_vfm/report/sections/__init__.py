# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""One file a section, found by page.py: `ORDER` is its place, `BUDGET_MB` its media, `sections` makes it from a run."""
