# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Small frames and motion vectors of one clip in, numbers and labels without weights out: a class a file."""
