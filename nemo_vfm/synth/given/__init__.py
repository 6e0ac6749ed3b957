# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what a synthesis is given: rows, prompts, documents, and captions of clips."""
