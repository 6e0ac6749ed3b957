# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Translates linears' names between diffusers and the original Wan and NVIDIA code, whose names ComfyUI uses."""

import re
from collections.abc import Mapping

from torch import nn

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.video.native_keys import COSMOS_LINEARS, WAN_LINEARS
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.wan import Wan

_BLOCK = re.compile(r"(?:transformer_)?blocks\.(\d+)\.(.+)")


def to_native(model: nn.Module, linear: str) -> str:
    """Translate a diffusers name to the native one.

    Raises:
        DataError: the linear has no native name.
    """
    table, match = _table(model), _BLOCK.fullmatch(linear)
    if match is None or match[2] not in table:
        raise DataError(f"{linear} has no name in this style, which covers linears of blocks: {', '.join(table)}")
    return f"blocks.{match[1]}.{table[match[2]]}"


def to_diffusers(model: nn.Module, native: str) -> str:
    """Translate a native name to the one of diffusers.

    Raises:
        DataError: it is not a native name.
    """
    table, match = {name: theirs for theirs, name in _table(model).items()}, _BLOCK.fullmatch(native)
    if match is None or match[2] not in table:
        raise DataError(f"{native[:200]} is not a linear of a block in this style, which covers {', '.join(table)}")
    blocks = "blocks" if isinstance(model, Wan) else "transformer_blocks"
    return f"{blocks}.{match[1]}.{table[match[2]]}"


def _table(model: nn.Module) -> Mapping[str, str]:
    if isinstance(model, Wan):
        return WAN_LINEARS
    if isinstance(model, DiT) and model.learned_positions is None:
        return COSMOS_LINEARS
    raise DataError("only Wan and Cosmos-Predict2 and 2.5 have native names; use the style peft or diffusers")
