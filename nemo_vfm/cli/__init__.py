# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Parses the command line, runs a verb and returns its exit status. Each file in `verbs/` is one verb."""
