# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Measures a log of a recommender: sessions, features, groups, and the rows of embedding tables."""
