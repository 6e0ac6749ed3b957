# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Converts a language model's weights between transformers' names and GPT's names.

Queries, keys and values are one matrix here, ordered by group of heads: Q queries, then the key, then the value.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nemo_vfm.models.blocks.decoder import Sizes
from nemo_vfm.models.convert.tensor_map import TensorMap, same

_OUTSIDE = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
_INSIDE = {
    "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "attention.out": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm", "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
}  # fmt: skip
_QKV = tuple(f"self_attn.{part}_proj" for part in "qkv")


def tensor_map(name: str, sizes: Sizes) -> TensorMap:
    """Where one of GPT's parameters is in transformers."""
    names = names_of(name)
    if len(names) == 1:
        return same(names[0])
    each = [sizes.head_dim * sizes.heads // sizes.groups, sizes.head_dim, sizes.head_dim]

    def join(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.reshape(sizes.groups, -1, *part.shape[1:]) for part in parts], 1).flatten(0, 1)

    def split(whole: Tensor) -> list[Tensor]:
        groups = whole.view(sizes.groups, -1, *whole.shape[1:])
        return [part.flatten(0, 1) for part in groups.split_with_sizes(each, 1)]

    return TensorMap(names, join, split)


def names_of(name: str) -> tuple[str, ...]:
    """transformers' names for what GPT calls `name`, such as blocks.3.mlp.up.weight."""
    module, _, kind = name.rpartition(".")
    if not module.startswith("blocks."):
        return (f"{_OUTSIDE[module]}.{kind}",)
    _, layer, inside = module.split(".", 2)
    found = _QKV if inside == "attention.qkv" else (_INSIDE[inside],)
    return tuple(f"model.layers.{layer}.{one}.{kind}" for one in found)
