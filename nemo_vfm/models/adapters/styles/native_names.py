# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Translates modules' names between diffusers and the original Wan and NVIDIA code, whose names ComfyUI uses."""

import re
from collections.abc import Mapping
from typing import Final

from torch import nn

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.video.native_keys import WAN_LINEARS, native_name
from nemo_vfm.models.convert.video.transformer_folder import family_of
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.wan import Wan

_WAN_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
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


def native_names(model: nn.Module) -> dict[str, str]:
    """Return the native name of each module with weights, by the name of diffusers.

    Raises:
        DataError: the model has no native names.
    """
    if not isinstance(model, Wan) and not (type(model) is DiT and model.learned_positions is None):
        raise DataError("only Wan and Cosmos-Predict2 and 2.5 have native names; use the style peft or diffusers")
    family, bare = family_of(model)
    tensors = [name for one in family.tensors_of(bare).values() for name in one.names]
    modules = dict.fromkeys(name.rpartition(".")[0] for name in tensors if name.endswith((".weight", ".bias")))
    if isinstance(model, Wan):
        return {module: _wan_name(module) for module in modules}
    return {module: native_name("2", f"{module}.weight").removesuffix(".weight") for module in modules}


def translated(names: Mapping[str, str], name: str) -> str:
    """Return what a name is in the other naming.

    Raises:
        DataError: it is not among the names.
    """
    if name not in names:
        patterns = dict.fromkeys(re.sub(r"\b\d+\b", "*", known, count=1) for known in names)
        raise DataError(f"{name[:200]} is not a module of this model in this style, which has {', '.join(patterns)}")
    return names[name]


def _wan_name(module: str) -> str:
    match = _WAN_BLOCK.fullmatch(module)
    return _WAN_OUTSIDE[module] if match is None else f"blocks.{match[1]}.{_WAN_INSIDE[match[2]]}"
