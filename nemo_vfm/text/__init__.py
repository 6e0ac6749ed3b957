# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Trains tokenizers on documents, and tokenizes documents into files of tokens."""
