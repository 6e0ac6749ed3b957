# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Gives linears the names that Wan's and NVIDIA's own programs have for them, as ComfyUI does, too."""

import re

from torch import nn

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.wan import Wan

#: Inside a block: diffusers -> native.
_WAN = {
    **{f"attn1.to_{x}": f"self_attn.{x}" for x in "qkv"}, "attn1.to_out.0": "self_attn.o",
    **{f"attn2.to_{x}": f"cross_attn.{x}" for x in "qkv"}, "attn2.to_out.0": "cross_attn.o",
    "attn2.add_k_proj": "cross_attn.k_img", "attn2.add_v_proj": "cross_attn.v_img",
    "ffn.net.0.proj": "ffn.0", "ffn.net.2": "ffn.2",
}  # fmt: skip
_COSMOS = {
    **{f"attn{n}.to_{x}": f"{kind}_attn.{x}_proj" for n, kind in ((1, "self"), (2, "cross")) for x in "qkv"},
    "attn1.to_out.0": "self_attn.output_proj", "attn2.to_out.0": "cross_attn.output_proj",
    "ff.net.0.proj": "mlp.layer1", "ff.net.2": "mlp.layer2",
    **{
        f"norm{n}.linear_{k}": f"adaln_modulation_{kind}.{k}"
        for n, kind in ((1, "self_attn"), (2, "cross_attn"), (3, "mlp")) for k in (1, 2)
    },
}  # fmt: skip
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


def _table(model: nn.Module) -> dict[str, str]:
    if isinstance(model, Wan):
        return _WAN
    if isinstance(model, DiT) and model.learned_positions is None:
        return _COSMOS
    raise DataError("native names are known of Wan and of Cosmos-Predict2 and 2.5; use the style peft or diffusers")
