# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Makes conversations by asking models: small programs that ask, and a job that runs many of them at once."""
