# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Names the types of unchecked JSON; checked values have their own types."""

from typing import Any

Json = Any
