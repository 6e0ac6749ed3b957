# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Finds near-duplicates: of clips by their embeddings, and of texts by their n-grams; nothing is read or written."""
