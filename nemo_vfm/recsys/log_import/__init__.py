# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Brings logs of others into feature tables: ids to rows, down-sampling, a ledger, and state that survives a kill."""
