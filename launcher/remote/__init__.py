# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Submits from a machine outside the cluster: sends the working tree and the arguments to a login node by ssh."""
