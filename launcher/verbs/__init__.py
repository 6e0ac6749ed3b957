# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Holds one verb per file: its arguments and what it does; `vfm-launch --help` shows their first lines."""
