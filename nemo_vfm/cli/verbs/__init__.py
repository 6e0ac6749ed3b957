# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Each file here is a verb: `add_arguments(parser)` and `run(arguments) -> exit status`; heavy imports inside `run`."""
