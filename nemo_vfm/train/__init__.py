# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Trains models: a job, one LightningModule, optimizer schedule, weight averaging, callbacks."""
