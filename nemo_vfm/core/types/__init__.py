# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Declares the protocols and values that rooms share, one subject per file. Protocols have methods only."""
