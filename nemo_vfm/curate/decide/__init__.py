# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Decides the fate of every clip from the table of scores and the recipe's rules; no file here reads a video."""
