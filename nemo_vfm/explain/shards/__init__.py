# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Browses shards: what a folder holds, and one sample of it. Import each name from its own file."""
