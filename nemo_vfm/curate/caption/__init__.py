# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Captions clips: from files beside the video, from models, from endpoints, from numbers."""
