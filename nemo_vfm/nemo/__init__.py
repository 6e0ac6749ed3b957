# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A configuration of nemo-toolkit in, its training inside our run folder out; only under `--trust nemo`."""
