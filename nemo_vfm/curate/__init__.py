# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Curates a folder of videos into clip shards, scores of every clip, and a ledger that adds up."""
