# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Networks, codecs and text encoders: plain single-device PyTorch, each with a declared plan for cutting it."""
