# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Files of other frameworks in, weights by name or models out, and back: read as data, nothing of them is run."""
