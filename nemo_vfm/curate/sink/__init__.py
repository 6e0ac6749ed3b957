# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Finished clip shards in, a folder that another framework reads out; one file a layout."""
