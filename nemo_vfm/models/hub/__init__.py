# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Downloads models from a hub for `nemo-vfm get`, the only command that does so."""
