# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Stores documents as memory-mapped files of tokens, and reads batches of sequences from them."""
