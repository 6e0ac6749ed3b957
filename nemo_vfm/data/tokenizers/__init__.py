# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Texts to the numbers of their tokens and back; nothing is fetched from anywhere."""
