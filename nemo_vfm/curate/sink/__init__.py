# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Exports finished clip shards to the layouts that other frameworks read; each layout has a file."""
