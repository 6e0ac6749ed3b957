# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Provides the data sources that a recipe names: shards, folders, tables, streams and blends of them."""
