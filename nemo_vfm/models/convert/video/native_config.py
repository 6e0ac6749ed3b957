"""Derives the configuration of a Cosmos from the shapes of its tensors, since NVIDIA's files hold nothing else.

The stretch of the rotary positions leaves no trace in a shape. It is known of the published sizes; of others it must
be given.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Final

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.video import cosmos_family
from nemo_vfm.models.convert.video.native_keys import Version, native_name

Shape = tuple[int, ...]
PATCH = (1, 2, 2)  # of all published networks; a file does not say it
#: Version, width, blocks, channels that mark given latents, text projection -> stretch of time, height and width, of
#: the published 7B and 14B of Cosmos 1, 0.6B, 2B and 14B of Cosmos-Predict2, 2B and 14B of 2.5.
_STRETCH: Final[dict[tuple[Version, int, int, int, bool], tuple[float, float, float]]] = {
    **{("1", 4096, 28, marks, False): (2.0, 1.0, 1.0) for marks in (0, 1)},
    **{("1", 5120, 36, marks, False): (2.0, 2.0, 2.0) for marks in (0, 1)},
    **{("2", width, depth, 0, False): (1.0, 4.0, 4.0) for width, depth in ((1280, 20), (2048, 28), (5120, 36))},
    ("2", 2048, 28, 1, False): (1.0, 3.0, 3.0),
    ("2", 5120, 36, 1, False): (20 / 24, 2.0, 2.0),
    **{("2", width, depth, 1, True): (1.0, 3.0, 3.0) for width, depth in ((2048, 28), (5120, 36))},
}
_BLOCK = {
    "1": re.compile(r"blocks\.block(\d+)\."), "2": re.compile(r"blocks\.(\d+)\."),
    "nemo": re.compile(r"decoder\.layers\.(\d+)\."),
}  # fmt: skip


def config_of(
    version: Version, names: Collection[str], shape_of: Callable[[str], Shape], stretch: Sequence[float] | None
) -> dict[str, Json]:
    """The config.json that diffusers would have for a network, from the shapes of its tensors.

    Args:
        version: 1, or 2 for Cosmos-Predict2 and 2.5, or nemo for 1 of NeMo.
        names: of its tensors, native and without a prefix.
        shape_of: the shape of one of them.
        stretch: of the rotary positions in time, height and width; None takes that of the published network of this
            size.

    Raises:
        DataError: a tensor is missing, or has a shape that no Cosmos has.
        UserError: the stretch is not known.
    """

    def sizes(name: str, dims: int = 2) -> Shape:
        there = native_name(version, name)
        if there not in names or len(shape_of(there)) != dims or not all(shape_of(there)):
            found = shape_of(there) if there in names else "missing"
            raise DataError(f"{there} is {found}; a Cosmos has it, with {dims} dimensions")
        return shape_of(there)

    width, inputs = sizes("patch_embed.proj.weight")
    head_dim = sizes("transformer_blocks.0.attn1.norm_q.weight", 1)[0]
    hidden, text = sizes("transformer_blocks.0.ff.net.0.proj.weight")[0], _TEXT in names  # so named in both
    outputs = _divided(sizes("proj_out.weight")[0], "channels of the output")
    marks = _divided(inputs, "channels of the input") - 1 - outputs  # one channel marks padding
    if marks not in (0, 1) or width % head_dim:
        raise DataError(f"its network takes {inputs} numbers of a patch and gives {outputs} channels, in heads of "
                        f"{head_dim} of {width}; of Cosmos are read those that take latents, a mark of given latents "
                        f"and a mark of padding")  # fmt: skip
    depth = _depth(version, names)
    known = _STRETCH.get(("1" if version == "nemo" else version, width, depth, marks, text))
    return {
        "_class_name": cosmos_family.CLASS, "in_channels": outputs + marks, "out_channels": outputs,
        "num_attention_heads": width // head_dim, "attention_head_dim": head_dim, "num_layers": depth,
        "mlp_ratio": hidden / width,
        "text_embed_dim": sizes("transformer_blocks.0.attn2.to_k.weight")[1],
        "adaln_lora_dim": sizes("norm_out.linear_1.weight")[0], "patch_size": list(PATCH),
        "rope_scale": list(_stretch(stretch, known, width, depth)), "concat_padding_mask": True,
        **_positions(version, sizes), **(_text(sizes) if text else {}),
    }  # fmt: skip


_TEXT = "crossattn_proj.0.weight"


def _divided(numbers: int, what: str) -> int:
    if numbers % (PATCH[0] * PATCH[1] * PATCH[2]):
        raise DataError(f"{numbers} {what} are not those of patches of {PATCH}, which every published Cosmos has")
    return numbers // (PATCH[0] * PATCH[1] * PATCH[2])


def _depth(version: Version, names: Collection[str]) -> int:
    numbers = {int(match[1]) for name in names if (match := _BLOCK[version].match(name)) and len(match[1]) < 5}
    if numbers != set(range(len(numbers))):
        raise DataError(f"its blocks are not numbered from 0 without gaps: there are {len(numbers)} up to "
                        f"{max(numbers)}")  # fmt: skip
    return len(numbers)


def _positions(version: Version, sizes: Callable[..., Shape]) -> dict[str, Json]:
    if version == "2":
        return {"extra_pos_embed_type": None}
    lengths = [sizes(f"learnable_pos_embed.pos_emb_{axis}")[0] for axis in "thw"]
    most = [length * side for length, side in zip(lengths, PATCH, strict=True)]
    return {"extra_pos_embed_type": "learnable", "max_size": most}


def _text(sizes: Callable[..., Shape]) -> dict[str, Json]:
    out, features = sizes(_TEXT)
    return {"use_crossattn_projection": True, "crossattn_proj_in_channels": features,
            "encoder_hidden_states_channels": out}  # fmt: skip


def _stretch(
    given: Sequence[float] | None, known: tuple[float, float, float] | None, width: int, depth: int
) -> Sequence[float]:
    if given is not None:
        return given
    if known is None:
        raise UserError(f"the file does not say how far its rotary positions are stretched, and no published Cosmos "
                        f"has width {width} and {depth} blocks; give --rope-scale T,H,W, which its training had as "
                        f"rope_t_, rope_h_ and rope_w_extrapolation_ratio, such as 1,3,3")  # fmt: skip
    return known
