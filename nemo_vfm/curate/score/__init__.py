# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Scores clips without weights, by numbers and labels from small frames and motion vectors; each class has a file."""
