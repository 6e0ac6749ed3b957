# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""One file a section. Each has `ORDER` (its place), `BUDGET_MB` (of media) and `sections(run, media)`, found by page.py."""
