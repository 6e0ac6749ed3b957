# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Converts a language model's weights between transformers' names and GPT's names.

Queries, keys and values are one matrix here, ordered by group of heads: Q queries, then the key, then the value.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.blocks.decoder import Sizes

_OUTSIDE = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
_INSIDE = {
    "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "attention.out": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm", "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
}  # fmt: skip
_QKV = tuple(f"self_attn.{part}_proj" for part in "qkv")


def ours(name: str, theirs: Mapping[str, Tensor], sizes: Sizes) -> Tensor:
    """One of GPT's parameters from transformers' weights.

    Raises:
        DataError: it is not there.
    """
    sources = [_found(theirs, source) for source in names_of(name)]
    if len(sources) == 1:
        return sources[0]
    parts = [part.reshape(sizes.groups, -1, *part.shape[1:]) for part in sources]
    return torch.cat(parts, 1).flatten(0, 1)


def theirs(name: str, weight: Tensor, sizes: Sizes) -> Iterator[tuple[str, Tensor]]:
    """One of GPT's parameters as transformers has it: by name."""
    targets = names_of(name)
    if len(targets) == 1:
        yield targets[0], weight
        return
    each = [sizes.head_dim * sizes.heads // sizes.groups, sizes.head_dim, sizes.head_dim]
    parts = torch.split(weight.view(sizes.groups, -1, *weight.shape[1:]), each, 1)
    for target, part in zip(targets, parts, strict=True):
        yield target, part.flatten(0, 1)


def names_of(name: str) -> tuple[str, ...]:
    """transformers' names for what GPT calls `name`, such as blocks.3.mlp.up.weight."""
    module, _, kind = name.rpartition(".")
    if not module.startswith("blocks."):
        return (f"{_OUTSIDE[module]}.{kind}",)
    _, layer, inside = module.split(".", 2)
    found = _QKV if inside == "attention.qkv" else (_INSIDE[inside],)
    return tuple(f"model.layers.{layer}.{one}.{kind}" for one in found)


def _found(weights: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in weights:
        raise DataError(f"the weights have no {name}, which config.json implies; the folder is of another model")
    return weights[name]
