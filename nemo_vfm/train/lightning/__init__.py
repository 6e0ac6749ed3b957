# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Trains LightningModules of anybody in a run folder: the Trainer of `LightningFit`, its exact resume, its metrics."""
