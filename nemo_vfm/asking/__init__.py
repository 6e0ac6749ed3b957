# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Asks models many questions: as many at once as the service serves, each answer kept, within a budget."""
