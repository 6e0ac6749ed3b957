# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that knows how a step is spread over devices: engines, attention, checkpoints."""
