# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Documents as tokens: files that are mapped into memory, and batches of sequences from them."""
