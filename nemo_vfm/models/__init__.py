# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Defines networks, codecs and text encoders: plain single-device PyTorch, each declaring how it can be split."""
