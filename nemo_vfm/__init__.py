# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""nemo_vfm: one YAML recipe from raw video to a trained world model. Importing it costs nothing."""

__version__ = "0.1.0"
