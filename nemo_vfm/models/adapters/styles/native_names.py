"""Translates modules' names between diffusers and the original Wan and NVIDIA code, whose names ComfyUI uses."""

import re
from collections.abc import Mapping
from typing import Final

from torch import nn

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.video.native_keys import COSMOS_LINEARS, WAN_LINEARS, native_name
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.wan import Wan

#: Inside a block of Wan: diffusers -> native.
_WAN_INSIDE: Final = {
    **WAN_LINEARS, "norm2": "norm3", "attn2.norm_added_k": "cross_attn.norm_k_img",
    **{f"attn{n}.norm_{x}": f"{kind}_attn.norm_{x}" for n, kind in ((1, "self"), (2, "cross")) for x in "qk"},
}  # fmt: skip
_WAN_OUTSIDE: Final = {
    "patch_embedding": "patch_embedding", "proj_out": "head.head",
    **{f"condition_embedder.{kind}_embedder.linear_{n}": f"{kind}_embedding.{2 * n - 2}"
       for kind in ("time", "text") for n in (1, 2)},
    "condition_embedder.time_proj": "time_projection.1",
    **{f"condition_embedder.image_embedder.{theirs}": f"img_emb.proj.{n}"
       for n, theirs in ((0, "norm1"), (1, "ff.net.0.proj"), (3, "ff.net.2"), (4, "norm2"))},
}  # fmt: skip

_COSMOS_INSIDE: Final = (*COSMOS_LINEARS, *(f"attn{n}.norm_{x}" for n in (1, 2) for x in "qk"))
_COSMOS_OUTSIDE: Final = (
    "patch_embed.proj", "proj_out", "crossattn_proj.0", "time_embed.norm",
    *(f"time_embed.t_embedder.linear_{n}" for n in (1, 2)), *(f"norm_out.linear_{n}" for n in (1, 2)),
)  # fmt: skip


def native_names(model: nn.Module) -> dict[str, str]:
    """Return the native name of each module that such a model may have, by the name of diffusers.

    Raises:
        DataError: the model has no native names.
    """
    if isinstance(model, Wan):
        inside = {f"blocks.{n}.{theirs}": f"blocks.{n}.{own}"
                  for n in range(model.depth) for theirs, own in _WAN_INSIDE.items()}  # fmt: skip
        return inside | _WAN_OUTSIDE
    if type(model) is DiT and model.learned_positions is None:
        modules = [f"transformer_blocks.{n}.{one}" for n in range(model.depth) for one in _COSMOS_INSIDE]
        return {one: native_name("2", f"{one}.weight").removesuffix(".weight") for one in (*modules, *_COSMOS_OUTSIDE)}
    raise DataError("only Wan and Cosmos-Predict2 and 2.5 have native names; use the style peft or diffusers")


def translated(names: Mapping[str, str], name: str) -> str:
    """Return what a name is in the other naming.

    Raises:
        DataError: it is not among the names.
    """
    if name not in names:
        patterns = dict.fromkeys(re.sub(r"\b\d+\b", "*", known, count=1) for known in names)
        raise DataError(f"{name[:200]} is not a module of this model in this style, which has {', '.join(patterns)}")
    return names[name]
