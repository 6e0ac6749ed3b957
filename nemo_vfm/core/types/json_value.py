# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Names what JSON holds before anybody has judged it; what has been judged has a type of its own."""

from typing import Any

Json = Any
