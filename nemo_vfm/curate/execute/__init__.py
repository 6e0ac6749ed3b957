# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Executes the work of a curation: in this process, in several on this machine, or on a Ray cluster."""
