"""Reads Wan under the names of its own programs and of ComfyUI: `model.diffusion_model.blocks.0.self_attn.q.weight`.

ComfyUI keeps some of these files in FP8, each weight with a number that it is multiplied by.
"""

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Self

from torch import Tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import sha256_file, sha256_folder
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.source_folder import SourceFolder, without_memory
from nemo_vfm.models.convert.tensor_map import TensorMap
from nemo_vfm.models.convert.tensor_source import UnreadTensor
from nemo_vfm.models.convert.video import wan_family
from nemo_vfm.models.convert.video.native_keys import wan_name
from nemo_vfm.models.convert.weight_files import DIFFUSERS, open_weights
from nemo_vfm.models.pretrained import read_mapping, told_mapping
from nemo_vfm.models.wan import Wan

COMFYUI = "model.diffusion_model."
Shape = tuple[int, ...]
#: In every Wan and in nothing else that is known.
_MARK, _FIRST = "head.modulation", "blocks.0.self_attn.norm_q.weight"
_HEAD_DIM = 128  # of all published networks; no shape says it
_FP8 = ("F8_E4M3", "F8_E5M2")
#: Beside a weight in FP8: what it is multiplied by. Two programs have two names for it.
_SCALES = (".scale_weight", ".weight_scale")
#: Marks of such a file, and scales of activations, which are for products in FP8 and change no weight.
_MARKS = ("scaled_fp8", ".scale_input", ".input_scale", ".comfy_quant")


class WanWeights(SourceFolder):
    """A Wan's parameters by our names, each read when it is asked for; to be used in a `with`.

    Args:
        path: of the file or the folder, for messages.
        files: its tensors, which stay open.
        others: names of what is not read.
        key: what stands before the network's names, where there are several networks.
        heads: of attention; None takes the width by 128, as in all published networks.
    """

    model: Wan
    #: Weights that are multiplied by a scale.
    num_scaled: int
    _implied_by = "a Wan of its size"

    def __init__(
        self, path: Path, files: Mapping[str, UnreadTensor], others: Collection[str] = (), *, key: str | None = None,
        heads: int | None = None,
    ) -> None:  # fmt: skip
        self.folder, self._stack = path, ExitStack()
        called = {found.rstrip("."): found for found in prefixes_of(files)}
        if key not in called and (key is not None or len(called) != 1):
            raise UserError(f"it has the networks {', '.join(name or '(without a name)' for name in called)}; name one "
                            "of them by --key")  # fmt: skip
        prefix = next(iter(called.values())) if key is None else called[key]
        wide, scales = unscale(files)
        self.num_scaled = len(scales)
        self._files = {name: stored for name, stored in wide.items() if name.startswith(prefix)}
        # Other networks, marks, scales of activations.
        self._others = [*others, *(set(files) - set(self._files) - set(scales.values()))]
        shapes = {name.removeprefix(prefix): stored.shape for name, stored in self._files.items()}
        self.config = config_of(shapes, heads)
        self.arguments = wan_family.arguments_of(self.config)
        self.model = without_memory(Wan, self.arguments, f"{path.name} describes")
        self._maps = wan_maps(self.model, prefix)
        self._take()

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """Of a folder that Wan's own programs load, whose config.json says how many heads there are."""
        heads = read_mapping(folder / "config.json").get("num_heads")
        with ExitStack() as stack:
            found = cls(folder, open_weights(folder, stack, DIFFUSERS), heads=heads if isinstance(heads, int) else None)
            found._stack = stack.pop_all()
        return found

    def fingerprint(self) -> str:
        """The hash of the file, or of all files of the folder."""
        return sha256_file(self.folder) if self.folder.is_file() else sha256_folder(self.folder)


def unscale(files: Mapping[str, UnreadTensor]) -> tuple[dict[str, UnreadTensor], dict[str, str]]:
    """Tensors without scales and marks, FP8 as fp32, times its scale where it has one; and the scale of each weight."""
    scales: dict[str, str] = {}
    for name in files:
        stem = name.removesuffix(".weight")
        for ending in _SCALES if stem != name else ():
            if stem + ending in files:
                scales.setdefault(name, stem + ending)
    beside, found = set(scales.values()), dict[str, UnreadTensor]()
    for name, stored in files.items():
        if name in beside or name.endswith(_MARKS):
            continue
        if name in scales or stored.kind in _FP8:
            stored = UnreadTensor("F32", stored.shape, partial(_widen, files, name, scales.get(name)))
        found[name] = stored
    return found, scales


def _widen(files: Mapping[str, UnreadTensor], name: str, scale: str | None) -> Tensor:
    found = files[name].read().float()
    if scale is None:
        return found
    factor = files[scale].read()
    if factor.numel() != 1 or not bool(factor.isfinite().all()):
        raise DataError(f"{scale} has {factor.numel()} numbers; a scale of FP8 is one finite number")
    return found * factor.float().reshape(())


def is_wan(names: Collection[str]) -> bool:
    """Whether a Wan under its own names is among tensors of these names."""
    return bool(prefixes_of(names))


def is_wan_folder(folder: Path) -> bool:
    """Whether Wan's own programs wrote a folder."""
    return told_mapping(folder / "config.json").get("_class_name") == "WanModel"


def prefixes_of(names: Collection[str]) -> list[str]:
    """What stands before the names of each network."""
    found = (name.removesuffix(_MARK) for name in names if name == _MARK or name.endswith(f".{_MARK}"))
    return sorted(prefix for prefix in found if prefix + _FIRST in names)


def wan_maps(model: Wan, prefix: str) -> dict[str, TensorMap]:
    """Where each parameter is in such a file."""
    return {
        own: replace(found, names=tuple(prefix + wan_name(name) for name in found.names))
        for own, found in wan_family.tensors_of(model).items()
    }


def require_dims(shapes: Mapping[str, Shape], name: str, dims: int, expected: str) -> Shape:
    """The shape of a tensor that is to have so many dimensions, none of them empty."""
    found = shapes.get(name, ())
    if len(found) != dims or not all(found):
        raise DataError(f"{name} is {shapes.get(name, 'missing')}; {expected} {dims} dimensions")
    return found


def config_of(shapes: Mapping[str, Shape], heads: int | None) -> dict[str, Json]:
    """The config.json that diffusers would have for a network, from the shapes of its tensors."""

    def sizes(name: str, dims: int = 2) -> Shape:
        return require_dims(shapes, name, dims, "a Wan has it, with")

    width, inputs, *patch = sizes("patch_embedding.weight", 5)
    outputs, rest = divmod(sizes("head.head.weight")[0], prod(patch))
    if rest:
        raise DataError(f"its output has {outputs} channels for a patch of {tuple(patch)}, and {rest} rows more")
    if width % (heads or _HEAD_DIM):
        raise UserError(f"its width is {width}, and heads are {_HEAD_DIM} wide in all published networks; give "
                        "--heads N, of which the width is a multiple")  # fmt: skip
    heads = heads or width // _HEAD_DIM
    image = "img_emb.proj.0.weight" in shapes
    positions = sizes("img_emb.emb_pos", 3)[1] if "img_emb.emb_pos" in shapes else None
    numbers = {name.split(".")[1] for name in shapes if name.startswith("blocks.")}
    if numbers != {str(number) for number in range(len(numbers))}:
        raise DataError(f"its blocks are not numbered from 0 without gaps: there are {len(numbers)}")
    return {
        "_class_name": wan_family.CLASS, "patch_size": list(patch), "num_attention_heads": heads,
        "attention_head_dim": width // heads, "in_channels": inputs, "out_channels": outputs,
        "text_dim": sizes("text_embedding.0.weight")[1], "freq_dim": sizes("time_embedding.0.weight")[1],
        "ffn_dim": sizes("blocks.0.ffn.0.weight")[0], "num_layers": len(numbers),
        "image_dim": sizes("img_emb.proj.0.weight", 1)[0] if image else None,
        "added_kv_proj_dim": width if image else None, "pos_embed_seq_len": positions,
    }  # fmt: skip
