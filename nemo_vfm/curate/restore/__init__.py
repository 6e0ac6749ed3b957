# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Kept clips' frames in, mended frames out while they are encoded: a class a file."""
