# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Holds one file for each verb: `add_arguments(parser)` and `run(arguments) -> exit status`.

Heavy imports are inside `run`.
"""
