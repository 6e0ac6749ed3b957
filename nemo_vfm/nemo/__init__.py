# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Trains configurations of nemo-toolkit inside our run folder; only under `--trust nemo`."""
