# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Compares a log of sessions as it comes with the same log deduplicated, from the file to the update."""
