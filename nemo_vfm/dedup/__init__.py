# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Groups clips into near-duplicates by their embeddings; arithmetic on arrays only."""
