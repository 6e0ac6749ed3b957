# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: words in, an exit status out. One file in `verbs/` is one verb."""
