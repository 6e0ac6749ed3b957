"""Maps a Cosmos 1 under the names of NeMo and Megatron-Core (`module.decoder.layers.mlp.linear_fc1.weight`) to a DiT.

Layers are stacked along a first axis, or numbered. Projections of attention lie as in our DiT: rows by head, then
(query, key, value) or (key, value). A block has one modulation, D -> 3 R -> 9 D, for its three parts, where NVIDIA's
other programs have three, each D -> R -> 3 D: the same function while the second matrix is zero outside its diagonal
blocks, as it is after their conversion, and no longer when NeMo has trained it. Then each part gets the rank 3 R.

Letters: D width, R rank of the published modulation.
"""

import re
from collections.abc import Mapping
from functools import partial
from itertools import permutations
from typing import Final

from torch import Tensor
from torch.nn.functional import pad

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.tensor_map import TensorMap, alias
from nemo_vfm.models.convert.tensor_source import Box, UnreadTensor
from nemo_vfm.models.dit import DiT

_LAYERS, _DOWN, _UP = "decoder.layers.", "adaLN.adaLN_modulation.1.weight", "adaLN.adaLN_modulation.2.weight"
_MAX_LAYERS = 10_000
_PARTS = 3  # self-attention, cross-attention, perceptron
#: Inside a block: ours -> NeMo's, the same numbers in the same order.
_INSIDE: Final[Mapping[str, str]] = {
    "self_attention.qkv": "full_self_attention.linear_qkv", "self_attention.out": "full_self_attention.linear_proj",
    "self_attention.q_norm": "full_self_attention.q_layernorm",
    "self_attention.k_norm": "full_self_attention.k_layernorm",
    "cross_attention.q": "cross_attention.linear_q", "cross_attention.kv": "cross_attention.linear_kv",
    "cross_attention.out": "cross_attention.linear_proj", "cross_attention.q_norm": "cross_attention.q_layernorm",
    "cross_attention.k_norm": "cross_attention.k_layernorm",
    "mlp.up": "mlp.linear_fc1", "mlp.down": "mlp.linear_fc2",
}  # fmt: skip


def numbered_layers(tensors: Mapping[str, UnreadTensor], prefix: str) -> dict[str, UnreadTensor]:
    """The tensors of a checkpoint with layers numbered as `decoder.layers.0.`, however they are kept."""
    parts, start = dict(tensors), prefix + _LAYERS
    for name, stack in tensors.items():
        rest = name.removeprefix(start)
        if not name.startswith(start) or re.match(r"\d+\.", rest):
            continue
        if not stack.shape or not 0 < stack.shape[0] <= _MAX_LAYERS:
            raise DataError(f"{name[:200]} has shape {stack.shape}, and a stack of 1 to {_MAX_LAYERS:,} layers "
                            f"was expected")  # fmt: skip
        del parts[name]
        for number in range(stack.shape[0]):
            if (row := f"{start}{number}.{rest}") in parts:
                raise DataError(f"it holds {row[:200]} alone and in the stack {name[:200]}")
            parts[row] = UnreadTensor(stack.kind, stack.shape[1:], partial(_layer, stack, number))
    return parts


def _layer(stack: UnreadTensor, number: int, box: Box | None = None) -> Tensor:
    inside = tuple((0, length) for length in stack.shape[1:]) if box is None else box
    return stack.read(((number, number + 1), *inside))[0].contiguous()


def is_mixed(parts: Mapping[str, UnreadTensor], prefix: str, depth: int, width: int, rank: int) -> bool:
    """Whether a modulation mixes the parts of a block: a number outside the diagonal blocks is not zero."""
    starts = [f"{prefix}{_LAYERS}{number}." for number in range(depth)]
    for start in starts:
        for name, expected in ((_DOWN, (_PARTS * rank, width)), (_UP, (_PARTS * 3 * width, _PARTS * rank))):
            found = parts[start + name].shape if start + name in parts else "missing"
            if found != expected:
                raise DataError(f"{(start + name)[:200]} is {found}; for a block of three parts, in a Cosmos of its "
                                f"size, {expected} was expected")  # fmt: skip
    for start in starts:
        blocks = parts[start + _UP].read().reshape(_PARTS, -1, _PARTS, rank)
        if any(bool(blocks[row, :, column].any()) for row, column in permutations(range(_PARTS), 2)):
            return True
    return False


def nemo_maps(
    model: DiT, outside: Mapping[str, TensorMap], parts: dict[str, UnreadTensor], prefix: str, rank: int
) -> dict[str, TensorMap]:
    """Where each parameter of a model of rank R is, or of 3 R where a modulation mixes parts.

    `outside` are maps of NVIDIA's other programs, which name what is outside the blocks in the same way. In `parts`,
    whose layers are numbered, boxes of modulations take their place, under names such as `up.weight[0:4, 8:12]`.
    """
    found = {name: target for name, target in outside.items() if not name.startswith("blocks.")}
    width, ranks = model.width, [(part * rank, (part + 1) * rank) for part in range(_PARTS)]
    if model.modulation_rank != rank:
        ranks = [(0, _PARTS * rank)] * _PARTS
        found["modulation.down.0.weight"] = _padded_map(found["modulation.down.0.weight"].names[0], 0, rank, model)
        found["modulation.up.0.weight"] = _padded_map(found["modulation.up.0.weight"].names[0], 1, rank, model)
    downs: list[Box] = [(span, (0, width)) for span in ranks]
    ups: list[Box] = [((3 * part * width, 3 * (part + 1) * width), span) for part, span in enumerate(ranks)]
    for number in range(model.depth):
        ours, theirs = f"blocks.{number}.", f"{prefix}{_LAYERS}{number}."
        found |= {f"{ours}{a}.weight": alias(f"{theirs}{b}.weight") for a, b in _INSIDE.items()}
        for kind, tensor, boxes in (("down", _DOWN, downs), ("up", _UP, ups)):
            stored = parts.pop(theirs + tensor)
            for part, box in enumerate(boxes):
                name = f"{theirs}{tensor}[{', '.join(f'{start}:{stop}' for start, stop in box)}]"
                shape = tuple(stop - start for start, stop in box)
                parts[name] = UnreadTensor(stored.kind, shape, partial(stored.read, box))
                found[f"{ours}modulation.{kind}.{part}.weight"] = alias(name)
    return found


def _padded_map(name: str, axis: int, rank: int, model: DiT) -> TensorMap:
    """A matrix of the output's modulation, with zeros up to the rank of the blocks': the same function."""
    assert model.modulation_rank is not None
    more = model.modulation_rank - rank
    return TensorMap(
        (name,), lambda found: pad(found[0], (0, 0, 0, more) if axis == 0 else (0, more)),
        lambda whole: [whole.narrow(axis, 0, rank).contiguous()],
    )  # fmt: skip
