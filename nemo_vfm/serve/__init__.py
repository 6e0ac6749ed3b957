# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Answers requests to a language model, many at once, behind an OpenAI-compatible endpoint or without one."""
