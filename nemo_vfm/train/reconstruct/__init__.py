# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""What an autoencoder is trained by: its task, the terms of its loss, and what is measured on held-out clips."""
