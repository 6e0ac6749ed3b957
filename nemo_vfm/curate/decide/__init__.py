# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The table of scores and the recipe's rules in, what becomes of every clip out; no file here looks at a video."""
