# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A file a verb: its arguments and what it does with them; `vfm-launch --help` shows their first lines."""
