# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Talks to services over HTTP: which hosts may be reached, with which key, and what must not be sent."""
