# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Finds texts that are equal, nearly equal or shared with an evaluation; functions over strings, nothing is written."""
