# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Works around the steps, one file each: metrics, validation, previews, checkpoints, throughput, progress."""
