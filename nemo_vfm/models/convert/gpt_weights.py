"""Converts a language model's weights between transformers' names and GPT's names.

Queries, keys and values are one matrix here, ordered by group of heads: Q queries, then the key, then the value. Where
a family has fused them (Phi-3), it is all queries, then all keys, then all values; and the gate lies above what it
gates in one matrix there, which are two here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from nemo_vfm.models.blocks.text.decoder import BlockSizes
from nemo_vfm.models.convert.tensor_map import TensorMap, alias

_OUTSIDE = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
_INSIDE = {
    "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "attention.out": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm", "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj", "experts.router": "mlp.gate",
}  # fmt: skip
_QKV = tuple(f"self_attn.{part}_proj" for part in "qkv")
_POST_NORM = {
    "attention_post_norm": "post_attention_layernorm", "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}  # fmt: skip
_FUSED_QKV, _FUSED_GATE = "self_attn.qkv_proj", "mlp.gate_up_proj"


def tensor_map(name: str, sizes: BlockSizes, fused: bool = False) -> TensorMap:
    """Where one of GPT's parameters, such as blocks.3.mlp.up.weight, is in transformers.

    Where a family has `fused` matrices, maps of gates are for reading; see `fused_gates`.
    """
    module, _, kind = name.rpartition(".")
    if not module.startswith("blocks."):
        return alias(f"{_OUTSIDE[module]}.{kind}")
    _, layer, inside = module.split(".", 2)
    before = f"model.layers.{layer}"
    if inside == "attention.qkv":
        names = (_FUSED_QKV,) if fused else _QKV
        return _qkv(tuple(f"{before}.{one}.{kind}" for one in names), sizes)
    if fused and inside in ("mlp.gate", "mlp.up"):
        half = slice(None, sizes.mlp_hidden) if inside == "mlp.gate" else slice(sizes.mlp_hidden, None)
        return TensorMap((f"{before}.{_FUSED_GATE}.{kind}",), lambda parts: parts[0][half],
                         lambda whole: [torch.cat([whole, whole])])  # fmt: skip
    if inside.startswith("experts.perceptrons."):
        _, _, expert, part = inside.split(".")
        return alias(f"{before}.mlp.experts.{expert}.{part}_proj.{kind}")
    known = _INSIDE | _POST_NORM if sizes.post_norm else _INSIDE
    return alias(f"{before}.{known[inside]}.{kind}")


def fused_gates(maps: Mapping[str, TensorMap], weights: Mapping[str, Tensor]) -> dict[str, TensorMap]:
    """Maps for writing a family that has fused matrices: what a gate gates brings the gate along."""

    def with_gate(gate: str, up: Tensor) -> list[Tensor]:
        return [torch.cat([torch.empty_like(up) if up.is_meta else weights[gate].to(up), up])]

    ups = {name.replace(".gate.", ".up."): name for name in maps if name.endswith(".mlp.gate.weight")}
    return {
        name: replace(one, split=partial(with_gate, ups[name])) if name in ups else one
        for name, one in maps.items() if name not in ups.values()
    }  # fmt: skip


def _qkv(names: tuple[str, ...], sizes: BlockSizes) -> TensorMap:
    each = [sizes.head_dim * sizes.heads // sizes.groups, sizes.head_dim, sizes.head_dim]
    rows = [sizes.groups * one for one in each]

    def join(parts: Sequence[Tensor]) -> Tensor:
        apart = parts if len(parts) == 3 else parts[0].split_with_sizes(rows)
        return torch.cat([part.reshape(sizes.groups, -1, *part.shape[1:]) for part in apart], 1).flatten(0, 1)

    def split(whole: Tensor) -> list[Tensor]:
        groups = whole.view(sizes.groups, -1, *whole.shape[1:])
        apart = [part.flatten(0, 1) for part in groups.split_with_sizes(each, 1)]
        return apart if len(names) == 3 else [torch.cat(apart)]

    return TensorMap(names, join, split)
