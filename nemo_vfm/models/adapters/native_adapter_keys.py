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
from nemo_vfm.models.convert.video.native_keys import COSMOS_2_BLOCK, COSMOS_2_OUTSIDE, WAN_BLOCK, WAN_OUTSIDE
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.wan import Wan


def native_names(model: nn.Module) -> dict[str, str]:
    """Return the native name of each module that such a model may have, by the name of diffusers."""
    if isinstance(model, Wan):
        blocks, inside, outside = "blocks", WAN_BLOCK, WAN_OUTSIDE
    elif type(model) is DiT and model.learned_positions is None:
        blocks, inside, outside = "transformer_blocks", COSMOS_2_BLOCK, COSMOS_2_OUTSIDE
    else:
        raise DataError(f"{type(model).__name__} has no native names, as only Wan and Cosmos-Predict2 and 2.5 have; "
                        "use the style peft or diffusers")  # fmt: skip
    return {
        f"{blocks}.{n}.{theirs}": f"blocks.{n}.{own}" for n in range(model.depth) for theirs, own in inside.items()
    } | outside


def translate(names: Mapping[str, str], name: str) -> str:
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
    found: dict[str, Matrices] = {}
    for name, given in modules.items():
        if not given.keys() - {"weight", "bias"}:
            continue
        if missing := {"a", "b"} - given.keys():
            raise DataError(f"{file} has no {'lora_down' if 'a' in missing else 'lora_up'} for {name}")
        if given["a"].ndim != 2 or ("alpha" in given and given["alpha"].numel() != 1):
            raise DataError(f"{file} has lora_down of {name} with shape {tuple(given['a'].shape)}, or an alpha that is "
                            f"not a scalar; expected two dimensions and a single number")  # fmt: skip
        magnitude = given["magnitude"].flatten() if "magnitude" in given else None
        alpha = float(given["alpha"]) if "alpha" in given else float(given["a"].shape[0])
        found[name] = Matrices(given["a"], given["b"], alpha, magnitude)
    return found, changes


def write_native(
    matrices: Mapping[str, Matrices], changes: Mapping[str, Tensor], model: nn.Module
) -> dict[str, Tensor]:
    """Return the tensors that `read_native` reads, under ComfyUI's names."""
    names, found = native_names(model), dict[str, Tensor]()
    for linear, one in matrices.items():
        name = f"{PREFIX}{translate(names, linear)}"
        found |= {f"{name}.lora_down.weight": one.a, f"{name}.lora_up.weight": one.b}
        found[f"{name}.alpha"] = torch.tensor(one.alpha)
        if one.magnitude is not None:
            found[f"{name}.dora_scale"] = one.magnitude[:, None]
    for tensor, change in changes.items():
        module, _, kind = tensor.rpartition(".")
        found[f"{PREFIX}{translate(names, module)}.{'diff' if kind == 'weight' else 'diff_b'}"] = change
    return found
