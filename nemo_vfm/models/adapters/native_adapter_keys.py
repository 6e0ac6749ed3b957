"""Reads and writes adapters under native names: those of ComfyUI, musubi-tuner, DiffSynth and lightx2v.

These are the names of the original Wan and NVIDIA code; modules' names are translated from and to those of diffusers.
"""

import re
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.adapters.matrices import Matrices, of_another_model
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
    """Return the native name of each module that such a model may have, by the name of diffusers."""
    if isinstance(model, Wan):
        inside = {f"blocks.{n}.{theirs}": f"blocks.{n}.{own}"
                  for n in range(model.depth) for theirs, own in _WAN_INSIDE.items()}  # fmt: skip
        return inside | _WAN_OUTSIDE
    if type(model) is DiT and model.learned_positions is None:
        modules = [f"transformer_blocks.{n}.{one}" for n in range(model.depth) for one in _COSMOS_INSIDE]
        return {one: native_name("2", f"{one}.weight").removesuffix(".weight") for one in (*modules, *_COSMOS_OUTSIDE)}
    raise DataError("only Wan and Cosmos-Predict2 and 2.5 have native names; use the style peft or diffusers")


def translated(names: Mapping[str, str], name: str) -> str:
    """Return what a name is in the other naming."""
    if name not in names:
        patterns = dict.fromkeys(re.sub(r"\b\d+\b", "*", known, count=1) for known in names)
        raise DataError(f"{name[:200]} is not a module of this model in this style, which has {', '.join(patterns)}")
    return names[name]


PREFIX: Final = "diffusion_model."
#: musubi-tuner's prefix; underscores stand for its names' dots.
_FLAT: Final = "lora_unet_"
#: DiffSynth writes no prefix, or its pipeline's.
_PREFIXES: Final = (PREFIX, "pipe.dit.", _FLAT)
_BARE = re.compile(
    r"(blocks\.\d+\.(self_attn|cross_attn|ffn)|head\.head|(text|time)_embedding|time_projection|img_emb|patch_embedding)\."
)
_KINDS: Final = {
    "lora_down.weight": "a", "lora_A.weight": "a", "lora_A.default.weight": "a",
    "lora_up.weight": "b", "lora_B.weight": "b", "lora_B.default.weight": "b",
    "alpha": "alpha", "dora_scale": "magnitude", "diff": "weight", "diff_b": "bias",
}  # fmt: skip


def has_native_names(key: str) -> bool:
    """Return whether a key is one of this style."""
    return key.startswith(_PREFIXES) or _BARE.match(key) is not None


def read_native(
    file: str, tensors: Mapping[str, Tensor], model: nn.Module
) -> tuple[dict[str, Matrices], dict[str, Tensor]]:
    """Return the matrices by linear, and what is added to weights and biases by tensor, both under diffusers' names.

    Without an alpha, alpha is the rank, as in the programs that write such files.
    """
    theirs = {native: name for name, native in native_names(model).items()}
    flat = {native.replace(".", "_"): name for native, name in theirs.items()}
    modules: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        kind = next((kind for kind in _KINDS if key.endswith(f".{kind}")), None)
        if kind is None or not has_native_names(key):
            raise DataError(f"{file} has {key[:200]!r}, which is not a key of an adapter under native names")
        module = key.removesuffix(f".{kind}")
        prefix = next((prefix for prefix in _PREFIXES if module.startswith(prefix)), "")
        name = (flat if prefix == _FLAT else theirs).get(module.removeprefix(prefix))
        if name is None:
            raise of_another_model(file, module, model)
        modules.setdefault(name, {})[_KINDS[kind]] = tensor
    changes = {f"{name}.{kind}": given[kind] for name, given in modules.items() for kind in ("weight", "bias")
               if kind in given}  # fmt: skip
    pairs = {name: given for name, given in modules.items() if given.keys() - {"weight", "bias"}}
    return {name: _matrices(file, name, given) for name, given in pairs.items()}, changes


def write_native(
    matrices: Mapping[str, Matrices], changes: Mapping[str, Tensor], model: nn.Module
) -> dict[str, Tensor]:
    """Return the tensors that `read_native` reads, under ComfyUI's names."""
    names, found = native_names(model), dict[str, Tensor]()
    for linear, one in matrices.items():
        name = f"{PREFIX}{translated(names, linear)}"
        found |= {f"{name}.lora_down.weight": one.a, f"{name}.lora_up.weight": one.b}
        found[f"{name}.alpha"] = torch.tensor(one.alpha)
        if one.magnitude is not None:
            found[f"{name}.dora_scale"] = one.magnitude[:, None]
    for tensor, change in changes.items():
        module, _, kind = tensor.rpartition(".")
        found[f"{PREFIX}{translated(names, module)}.{'diff' if kind == 'weight' else 'diff_b'}"] = change
    return found


def _matrices(file: str, linear: str, given: Mapping[str, Tensor]) -> Matrices:
    if missing := {"a", "b"} - given.keys():
        raise DataError(f"{file} has no {'lora_down' if 'a' in missing else 'lora_up'} for {linear}")
    if given["a"].ndim != 2 or ("alpha" in given and given["alpha"].numel() != 1):
        raise DataError(f"{file} has lora_down of {linear} with shape {tuple(given['a'].shape)}, or an alpha that is "
                        f"not a scalar; expected two dimensions and a single number")  # fmt: skip
    magnitude = given["magnitude"].flatten() if "magnitude" in given else None
    alpha = float(given["alpha"]) if "alpha" in given else float(given["a"].shape[0])
    return Matrices(given["a"], given["b"], alpha, magnitude)
