# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Gives linears the names that Wan's and NVIDIA's own programs have for them, as ComfyUI does, too."""

import re
from collections.abc import Mapping

from torch import nn

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.video.native_keys import COSMOS_LINEARS, WAN_LINEARS
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.wan import Wan

_BLOCK = re.compile(r"(?:transformer_)?blocks\.(\d+)\.(.+)")


def to_native(model: nn.Module, linear: str) -> str:
    """The native name of a linear of diffusers.

    Raises:
        DataError: there is none.
    """
    table, match = _table(model), _BLOCK.fullmatch(linear)
    if match is None or match[2] not in table:
        raise DataError(f"{linear} has no name in this style, which knows linears of blocks: {', '.join(table)}")
    return f"blocks.{match[1]}.{table[match[2]]}"


def to_diffusers(model: nn.Module, native: str) -> str:
    """The inverse.

    Raises:
        DataError: it is no native name.
    """
    table, match = {name: theirs for theirs, name in _table(model).items()}, _BLOCK.fullmatch(native)
    if match is None or match[2] not in table:
        raise DataError(f"{native[:200]} is no linear of a block in this style, which knows {', '.join(table)}")
    blocks = "blocks" if isinstance(model, Wan) else "transformer_blocks"
    return f"{blocks}.{match[1]}.{table[match[2]]}"


def _table(model: nn.Module) -> Mapping[str, str]:
    if isinstance(model, Wan):
        return WAN_LINEARS
    if isinstance(model, DiT) and model.learned_positions is None:
        return COSMOS_LINEARS
    raise DataError("native names are known of Wan and of Cosmos-Predict2 and 2.5; use the style peft or diffusers")
