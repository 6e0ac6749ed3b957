"""Reads Cosmos under the names of NVIDIA's own programs, and writes such files of Cosmos and Wan.

NVIDIA's names are `net.blocks.0.self_attn.q_proj.weight`, and so on. A file there may hold the network twice, as
trained (`net.`) and averaged (`net_ema.`), beside counters and tables. It holds no configuration, which is derived from
the shapes of its tensors. The stretch of the rotary positions leaves no trace in a shape: it is known of the published
sizes; of others it must be given.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import sha256_file, sha256_folder
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.foreign import ForeignTensors
from nemo_vfm.models.convert.source_folder import SourceFolder, without_memory
from nemo_vfm.models.convert.tensor_map import TensorMap
from nemo_vfm.models.convert.video import cosmos_family, wan_family
from nemo_vfm.models.convert.video.native_keys import Version, is_left_out, native_name, prefixes_of
from nemo_vfm.models.convert.video.nemo_maps import is_mixed, nemo_maps, numbered_layers
from nemo_vfm.models.convert.video.wan_native import COMFYUI, Shape, require_dims, wan_maps
from nemo_vfm.models.convert.weight_files import write_files
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.wan import Wan

FILE, PREFIX, _AVERAGED = "model.safetensors", "net.", "net_ema."
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
_TEXT = "crossattn_proj.0.weight"


class NativeWeights(SourceFolder):
    """A Cosmos' parameters by our names, each read when it is asked for.

    Args:
        path: of the file or the folder, for messages.
        given: its tensors, which stay open.
        key: which network, such as net or net_ema; None takes the averaged one where there is one.
        stretch: of the rotary positions in time, height and width; None takes that of the published network of this
            size.
    """

    model: DiT
    #: What else a reader of the summary should know.
    note = ""
    _implied_by = "a Cosmos of its size"

    def __init__(
        self, path: Path, given: ForeignTensors, *, key: str | None = None, stretch: Sequence[float] | None = None
    ) -> None:
        self.folder, self._stack, self._others = path, ExitStack(), given.others
        found = prefixes_of(given.tensors)
        averaged = [prefix for prefix in found if f".{prefix}".endswith(f".{_AVERAGED}")]
        chosen = averaged or list(found)
        if key is not None:
            chosen = [prefix for prefix in found if f".{prefix}".endswith(f".{key}.")]
        if len(chosen) != 1:
            names = ", ".join(prefix.rstrip(".") or "one without a name" for prefix in found)
            raise UserError(f"it holds the networks {names}; say with --key which one is meant")
        self.prefix = chosen[0]
        version = found[self.prefix]
        files = numbered_layers(given.tensors, self.prefix) if version == "nemo" else dict(given.tensors)
        self._files = files
        own = {name.removeprefix(self.prefix): stored.shape for name, stored in files.items()
               if name.startswith(self.prefix)}  # fmt: skip
        self.config = config_of(version, own, stretch)
        self.arguments = cosmos_family.arguments_of(self.config)
        depth, width, rank = (self.arguments[key] for key in ("depth", "width", "modulation_rank"))
        if version == "nemo" and is_mixed(files, self.prefix, depth, width, rank):
            self.config["adaln_lora_dim"] = self.arguments["modulation_rank"] = 3 * rank
            self.note = (f"training has mixed the modulations of the parts of a block, so each part has the rank "
                         f"{3 * rank} instead of {rank}")  # fmt: skip
        self.model = without_memory(DiT, self.arguments, f"{path.name} has the tensors of")
        self._maps = native_maps(self.model, "1" if version == "nemo" else version, self.prefix)
        if version == "nemo":  # it has one modulation for three parts of a block
            self._maps = nemo_maps(self.model, self._maps, files, self.prefix, rank)
        # What is not used must be known to change nothing: tables, counters, another network, an optimizer.
        above = self.prefix[: self.prefix.rstrip(".").rfind(".") + 1]
        rest = tuple(prefix for prefix in found if prefix != self.prefix and prefix)
        beside = [
            name for name in self._files
            if not name.startswith(above) or name.startswith(rest)
            or is_left_out(name.removeprefix(self.prefix)) or is_left_out(name.removeprefix(above))
            or name.startswith("optim")
        ]  # fmt: skip
        self._take(beside)

    def fingerprint(self) -> str:
        """The hash of the file, or of all files of the folder."""
        return sha256_file(self.folder) if self.folder.is_file() else sha256_folder(self.folder)


def is_cosmos(names: Collection[str]) -> bool:
    """Whether a network of Cosmos is among tensors of these names."""
    return bool(prefixes_of(names))


def native_maps(model: DiT, version: Version, prefix: str) -> dict[str, TensorMap]:
    """Where each parameter is in NVIDIA's files."""
    return {
        own: replace(found, names=tuple(prefix + native_name(version, name) for name in found.names))
        for own, found in cosmos_family.tensors_of(model).items()
    }


def write_native(
    model: DiT, weights: Mapping[str, Tensor], folder: Path, *, dtype: torch.dtype | None = None,
    comfyui: bool = False,
) -> Path:  # fmt: skip
    """Write a Cosmos under NVIDIA's names, or a Wan under its own, as one file of safetensors; its path.

    See `write_gpt` for the arguments. ComfyUI has a prefix for a Wan; a Cosmos it reads under NVIDIA's names.
    """
    if isinstance(model, Wan):
        wan_family.config_of(model)
        maps, tables = wan_maps(model, COMFYUI if comfyui else ""), dict[str, Tensor]()
    else:
        cosmos_family.config_of(model)
        maps = native_maps(model, "2" if model.learned_positions is None else "1", PREFIX)
        # Tables that NVIDIA's programs compute and keep beside the weights; diffusers and ComfyUI know a file by them.
        # A head's dimensions are cut into time, height and width as in Cosmos' rotary positions: a sixth, in pairs, for
        # each of the latter two.
        side = model.rope.head_dim // 6 * 2
        time = model.rope.head_dim - 2 * side
        tables = {f"{PREFIX}pos_embedder.seq": torch.arange(128.0)}
        if model.learned_positions is None:
            tables[f"{PREFIX}pos_embedder.dim_spatial_range"] = torch.arange(0, side, 2).float() / side
            tables[f"{PREFIX}pos_embedder.dim_temporal_range"] = torch.arange(0, time, 2).float() / time
    folder.mkdir(parents=True, exist_ok=True)
    write_files(model, maps, weights, folder, file_bytes=inf, dtype=dtype, tables=tables)
    return folder / FILE


def config_of(version: Version, shapes: Mapping[str, Shape], stretch: Sequence[float] | None) -> dict[str, Json]:
    """The config.json that diffusers would have for a network, from the shapes of its tensors by native names.

    Version nemo is 1 of NeMo. Without a stretch, that of the published network of this size is taken.
    """

    def sizes(name: str, dims: int = 2) -> Shape:
        return require_dims(shapes, native_name(version, name), dims, "a Cosmos has it, with")

    width, inputs = sizes("patch_embed.proj.weight")
    head_dim = sizes("transformer_blocks.0.attn1.norm_q.weight", 1)[0]
    hidden, text = sizes("transformer_blocks.0.ff.net.0.proj.weight")[0], _TEXT in shapes  # so named in both
    outputs = _channels_of_patches(sizes("proj_out.weight")[0], "channels of the output")
    marks = _channels_of_patches(inputs, "channels of the input") - 1 - outputs  # one channel marks padding
    if marks not in (0, 1) or width % head_dim:
        raise DataError(f"its network takes {inputs} numbers of a patch and gives {outputs} channels, in heads of "
                        f"{head_dim} of {width}; of Cosmos are read those that take latents, a mark of given latents "
                        f"and a mark of padding")  # fmt: skip
    numbers = {int(match[1]) for name in shapes if (match := _BLOCK[version].match(name)) and len(match[1]) < 5}
    if numbers != set(range(depth := len(numbers))):
        raise DataError(f"its blocks are not numbered from 0 without gaps: there are {depth} up to {max(numbers)}")
    if stretch is None:
        stretch = _STRETCH.get(("1" if version == "nemo" else version, width, depth, marks, text))
    if stretch is None:
        raise UserError(f"the file does not say how far its rotary positions are stretched, and no published Cosmos "
                        f"has width {width} and {depth} blocks; give --rope-scale T,H,W, which its training had as "
                        f"rope_t_, rope_h_ and rope_w_extrapolation_ratio, such as 1,3,3")  # fmt: skip
    more: dict[str, Json] = {"extra_pos_embed_type": None}
    if version != "2":
        lengths = [sizes(f"learnable_pos_embed.pos_emb_{axis}")[0] for axis in "thw"]
        most = [length * side for length, side in zip(lengths, PATCH, strict=True)]
        more = {"extra_pos_embed_type": "learnable", "max_size": list(most)}
    if text:
        out, features = sizes(_TEXT)
        more |= {"use_crossattn_projection": True, "crossattn_proj_in_channels": features,
                 "encoder_hidden_states_channels": out}  # fmt: skip
    return {
        "_class_name": cosmos_family.CLASS, "in_channels": outputs + marks, "out_channels": outputs,
        "num_attention_heads": width // head_dim, "attention_head_dim": head_dim, "num_layers": depth,
        "mlp_ratio": hidden / width,
        "text_embed_dim": sizes("transformer_blocks.0.attn2.to_k.weight")[1],
        "adaln_lora_dim": sizes("norm_out.linear_1.weight")[0], "patch_size": list(PATCH),
        "rope_scale": list(stretch), "concat_padding_mask": True, **more,
    }  # fmt: skip


def _channels_of_patches(numbers: int, what: str) -> int:
    if numbers % (PATCH[0] * PATCH[1] * PATCH[2]):
        raise DataError(f"{numbers} {what} are not those of patches of {PATCH}, which every published Cosmos has")
    return numbers // (PATCH[0] * PATCH[1] * PATCH[2])
