# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Brings a model's folder here from a hub, for `nemo-vfm get` alone: nothing else in this package fetches."""
