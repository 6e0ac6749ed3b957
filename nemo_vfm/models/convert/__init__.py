# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Files of other frameworks in, weights by name out: read as data, with nothing of them run; one file a format."""
