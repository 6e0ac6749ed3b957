# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Submits from a machine that is not the cluster's: the working tree and the words go to a login node, by ssh."""
