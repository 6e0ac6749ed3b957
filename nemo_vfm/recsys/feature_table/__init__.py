# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Writes and reads feature tables: logs of recommenders as Parquet, clustered by session, repeated rows once."""
