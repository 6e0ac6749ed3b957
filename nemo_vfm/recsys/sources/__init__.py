# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads logs of others: Criteo, KuaiRand, and Parquet with named columns."""
