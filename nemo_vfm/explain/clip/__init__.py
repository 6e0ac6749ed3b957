# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""One clip of a curation: what was found, decided and made of it. Import each word from its own file."""
