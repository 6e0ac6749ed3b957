# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A key of a recipe in, whether its value changes how work is done but not what it makes, out."""

import re

INERT = re.compile(
    r"num_workers|every_steps|keep_(?:last|best|every_steps)|(?:log|save|checkpoint|preview|validate)_every(?:_\w+)?"
)


def is_inert(key: str) -> bool:
    """Whether a key's value has no influence on what a finished step holds."""
    return INERT.fullmatch(key) is not None
