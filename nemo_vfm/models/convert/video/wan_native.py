"""Reads Wan under the names of its own programs and of ComfyUI: `model.diffusion_model.blocks.0.self_attn.q.weight`.

ComfyUI keeps some of these files in FP8, each weight with a number that it is multiplied by.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import sha256_file, sha256_folder
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.source_folder import SourceFolder, without_memory
from nemo_vfm.models.convert.tensor_map import TensorMap
from nemo_vfm.models.convert.tensor_source import TensorHeader, TensorSource
from nemo_vfm.models.convert.video import wan_family
from nemo_vfm.models.convert.video.native_keys import wan_name
from nemo_vfm.models.convert.weight_files import DIFFUSERS, opened
from nemo_vfm.models.pretrained import read_mapping, told_mapping
from nemo_vfm.models.wan import Wan

COMFYUI = "model.diffusion_model."
#: In every Wan and in nothing else that is known.
_MARK, _FIRST = "head.modulation", "blocks.0.self_attn.norm_q.weight"
_HEAD_DIM = 128  # of all published networks; no shape says it
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
#: Beside a weight in FP8: what it is multiplied by. Two programs have two names for it.
_SCALES = (".scale_weight", ".weight_scale")
#: Marks of such a file, and scales of activations, which are for products in FP8 and change no weight.
_MARKS = ("scaled_fp8", ".scale_input", ".input_scale", ".comfy_quant")


class WanWeights(SourceFolder):
    """A Wan's parameters by our names, each read when it is asked for; to be used in a `with`.

    Args:
        path: of the file or the folder, for messages.
        files: the open file of each tensor.
        others: names of what is not read.
        key: what stands before the network's names, where there are several networks.
        heads: of attention; None takes the width by 128, as in all published networks.

    Raises:
        UserError: which network is meant, or how many heads it has, is not clear.
        DataError: a tensor is missing or left over, or of another shape.
    """

    model: Wan
    #: Weights that are multiplied by a scale.
    num_scaled: int
    _implied_by = "a Wan of its size"

    def __init__(
        self, path: Path, files: Mapping[str, TensorSource], others: Collection[str] = (), *, key: str | None = None,
        heads: int | None = None,
    ) -> None:  # fmt: skip
        self.folder, self._stack = path, ExitStack()
        called = {found.rstrip("."): found for found in prefixes_of(files)}
        if key not in called and (key is not None or len(called) != 1):
            raise UserError(f"it has the networks {', '.join(name or '(without a name)' for name in called)}; name one "
                            "of them by --key")  # fmt: skip
        prefix = next(iter(called.values())) if key is None else called[key]
        scaled = ScaledTensors(files)
        self.num_scaled = len(scaled.scales)
        self._files = dict.fromkeys([name for name in scaled.keys() if name.startswith(prefix)], scaled)  # noqa: SIM118
        # Other networks, marks, scales of activations.
        self._others = [*others, *(set(files) - set(self._files) - set(scaled.scales.values()))]
        names = {name.removeprefix(prefix) for name in self._files}
        self.config = config_of(names, lambda name: tuple(scaled.get_slice(prefix + name).get_shape()), heads)
        self.arguments = wan_family.arguments_of(self.config)
        self.model = without_memory(Wan, self.arguments, f"{path.name} describes")
        self._maps = wan_maps(self.model, prefix)
        self._require_all_used()
        self._require_shapes()

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """Of a folder that Wan's own programs load, whose config.json says how many heads there are."""
        heads = read_mapping(folder / "config.json").get("num_heads")
        with ExitStack() as stack:
            found = cls(folder, opened(folder, stack, DIFFUSERS), heads=heads if isinstance(heads, int) else None)
            found._stack = stack.pop_all()
        return found

    def fingerprint(self) -> str:
        """The hash of the file, or of all files of the folder."""
        return sha256_file(self.folder) if self.folder.is_file() else sha256_folder(self.folder)


class ScaledTensors:
    """Tensors whose FP8 is read as fp32, times the scale where there is one."""

    def __init__(self, files: Mapping[str, TensorSource]) -> None:
        self._files = files
        self.scales: dict[str, str] = {}
        for name in files:
            stem = name.removesuffix(".weight")
            for ending in _SCALES if stem != name else ():
                if stem + ending in files:
                    self.scales.setdefault(name, stem + ending)

    def keys(self) -> list[str]:
        """Names, but for scales and marks."""
        beside = set(self.scales.values())
        return [name for name in self._files if name not in beside and not name.endswith(_MARKS)]

    def get_slice(self, name: str) -> TensorHeader:
        """The shape and the dtype, of which FP8 is fp32."""
        header = self._files[name].get_slice(name)
        wide = name in self.scales or header.get_dtype() in ("F8_E4M3", "F8_E5M2", *map(str, _FP8))
        return TensorHeader(torch.float32, tuple(header.get_shape())) if wide else header

    def get_tensor(self, name: str) -> Tensor:
        found = self._files[name].get_tensor(name)
        if (scale := self.scales.get(name)) is None:
            return found.float() if found.dtype in _FP8 else found
        factor = self._files[scale].get_tensor(scale)
        if factor.numel() != 1 or not bool(factor.isfinite().all()):
            raise DataError(f"{scale} has {factor.numel()} numbers; a scale of FP8 is one finite number")
        return found.float() * factor.float().reshape(())


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


def config_of(names: Collection[str], shape_of: Callable[[str], tuple[int, ...]], heads: int | None) -> dict[str, Json]:
    """The config.json that diffusers would have for a network, from the shapes of its tensors."""

    def sizes(name: str, dims: int = 2) -> tuple[int, ...]:
        if name not in names or len(shape_of(name)) != dims or not all(shape_of(name)):
            found = shape_of(name) if name in names else "missing"
            raise DataError(f"{name} is {found}; a Wan has it, with {dims} dimensions")
        return shape_of(name)

    width, inputs, *patch = sizes("patch_embedding.weight", 5)
    outputs, rest = divmod(sizes("head.head.weight")[0], prod(patch))
    if rest:
        raise DataError(f"its output has {outputs} channels for a patch of {tuple(patch)}, and {rest} rows more")
    if width % (heads or _HEAD_DIM):
        raise UserError(f"its width is {width}, and heads are {_HEAD_DIM} wide in all published networks; give "
                        "--heads N, of which the width is a multiple")  # fmt: skip
    heads = heads or width // _HEAD_DIM
    image = "img_emb.proj.0.weight" in names
    positions = sizes("img_emb.emb_pos", 3)[1] if "img_emb.emb_pos" in names else None
    numbers = {name.split(".")[1] for name in names if name.startswith("blocks.")}
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
