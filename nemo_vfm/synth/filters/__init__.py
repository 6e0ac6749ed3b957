# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Drops rows that a pipeline has made: copies, texts of evaluations, other languages, lengths, what a guard refuses."""
