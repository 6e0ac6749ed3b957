# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Embeddings of clips in, groups of near-duplicates out; arithmetic on arrays only."""
