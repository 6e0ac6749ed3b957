# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Explains one clip of a curation: what was found, decided and made of it. Import each name from its own file."""
