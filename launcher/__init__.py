# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A recipe and a cluster in, Slurm jobs and what became of them out; of nemo_vfm it imports `config` and `core`."""
