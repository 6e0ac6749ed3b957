# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Defines models of recommenders, which give a logit for each label of a sample."""
