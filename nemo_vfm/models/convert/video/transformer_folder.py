"""Reads and writes a video model's folder of diffusers: the transformer's, or the one of its pipeline.

Weights are safetensors, read a tensor at a time; no code of the folder is run.
"""

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.source_folder import SourceFolder, without_memory
from nemo_vfm.models.convert.tensor_map import TensorMap
from nemo_vfm.models.convert.video import cosmos_family, wan_family
from nemo_vfm.models.convert.weight_files import DIFFUSERS, open_weights, write_files
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.pretrained import PIPELINE, checked_folder, read_mapping, told_mapping
from nemo_vfm.models.wan import Wan

TRANSFORMER, SECOND = "transformer", "transformer_2"
_FILE_BYTES = 4 << 30
#: What a network computes and the shapes of its weights do not tell.
_MEANS = ("heads", "patch", "rope", "gelu", "noise_scale", "text_as_given", "qk_norm_eps", "padding_mask",
          "condition_channels")  # fmt: skip


@dataclass(frozen=True, slots=True)
class TransformerFamily:
    """One transformer of diffusers."""

    kind: type[DiT]  #: the model here
    arguments_of: Callable[[Mapping[str, Json]], dict[str, Any]]  #: its arguments, from config.json
    config_of: Callable[[Any], dict[str, Json]]  #: the other way round
    tensors_of: Callable[[Any], dict[str, TensorMap]]  #: where each of its parameters is there
    blocks: str  #: what the names of the blocks' tensors begin with there


FAMILIES = {
    cosmos_family.CLASS: TransformerFamily(
        DiT, cosmos_family.arguments_of, cosmos_family.config_of, cosmos_family.tensors_of, "transformer_blocks."
    ),
    wan_family.CLASS: TransformerFamily(
        Wan, wan_family.arguments_of, wan_family.config_of, wan_family.tensors_of, "blocks."
    ),
}


def family_of(model: nn.Module) -> tuple[TransformerFamily, DiT]:
    """The family of diffusers that a model is of, and the model."""
    found = next((one for one in FAMILIES.values() if type(model) is one.kind), None)
    if found is None:
        raise DataError(f"diffusers has no network like this {type(model).__name__}; it has those of Cosmos and Wan")
    assert isinstance(model, DiT)
    return found, model


def transformer_in(folder: Path) -> Path | None:
    """Where the transformer of a video model is: here, or in a pipeline's folder; None where it is none that we read.

    A pipeline with two transformers (Wan 2.2 A14B) has the first, for high noise levels, in `transformer`; name the
    folder of the second to take that.
    """
    for found in (folder, folder / TRANSFORMER) if (folder / PIPELINE).is_file() else (folder,):
        if told_mapping(found / "config.json").get("_class_name") in [*FAMILIES]:  # a list has no hash
            return found
    return None


@no_component
class TransformerFolder(SourceFolder):
    """A video model's parameters by our names, each read when it is asked for; to be used in a `with`.

    Args:
        folder: of the transformer, or of its pipeline.
    """

    model: DiT

    def __init__(self, folder: Path) -> None:
        self.folder = checked_folder(transformer_in(folder) or folder)
        self.config = read_mapping(self.folder / "config.json")
        if self.config.get("_class_name") not in FAMILIES:
            kind = self.config.get("_class_name")
            problem = f"is of the class {str(kind)[:60]}" if kind else "names no class of diffusers"
            raise DataError(f"{self.folder.name}/config.json {problem}; read are {', '.join(FAMILIES)}")
        self.family = FAMILIES[str(self.config["_class_name"])]
        try:
            self.arguments = self.family.arguments_of(self.config)
        except DataError as error:
            raise DataError(f"{self.folder.name}/{error}") from error
        with ExitStack() as stack:
            self._files = open_weights(self.folder, stack, DIFFUSERS)
            self._require_blocks(self.family.blocks, self.arguments["depth"], "num_layers")
            implied_by = f"{self.folder.name}/config.json describes"
            self.model = without_memory(self.family.kind, self.arguments, implied_by)
            self._maps = self.family.tensors_of(self.model)
            self._take()
            self._stack = stack.pop_all()

    def require_same_function(self, model: nn.Module) -> None:
        """UserError where weights fit a model and mean another function in it."""
        found = next((part for part in model.modules() if isinstance(part, self.family.kind)), None)
        if found is None:
            raise UserError(f"{self.folder} is a {self.family.kind.__name__}, but the model to be initialised has none")
        own, other = ({name: getattr(one, name) for name in _MEANS} for one in (found, self.model))
        self._require_equal(own, other)


def load_video_model(folder: Path, dtype: torch.dtype = torch.float32) -> DiT:
    """The network of a folder; see `TransformerFolder`."""
    with TransformerFolder(folder) as weights:
        model = weights.model
        model.to_empty(device="cpu").to(dtype)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
    return model


def write_transformer(
    model: DiT, weights: Mapping[str, Tensor], folder: Path, *, dtype: torch.dtype | None = None,
    file_bytes: int = _FILE_BYTES,
) -> None:  # fmt: skip
    """Write the transformer's folder as diffusers loads it; see `write_gpt` for the arguments."""
    family, _ = family_of(model)
    config = family.config_of(model)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give the model its own folder")
    folder.mkdir(parents=True, exist_ok=True)
    maps = family.tensors_of(model)
    write_files(model, maps, weights, folder, file_bytes=file_bytes, dtype=dtype, stem=DIFFUSERS)
    write_json(folder / "config.json", config)  # last: without it nobody takes the folder for a model


def copy_pipeline(source: Path, target: Path, but: str = TRANSFORMER) -> list[str]:
    """Copy a pipeline's folder without one of its parts; the names of the parts that were copied."""
    if not (source / PIPELINE).is_file():
        raise UserError(f"{source} is not a pipeline's folder: it has no {PIPELINE}")
    named = [name for name, value in read_mapping(source / PIPELINE).items() if isinstance(value, list) and any(value)]
    parts = [name for name in named if name != but and (source / name).is_dir() and not (source / name).is_symlink()]
    if left := sorted({*named} - {*parts, but}):
        warn(f"{PIPELINE} names {', '.join(left[:4])}, which {source} does not hold itself (links are not followed): "
             f"the pipeline that is written lacks it; copy it there yourself")  # fmt: skip
    target.mkdir(parents=True, exist_ok=True)
    for name in parts:
        shutil.copytree(source / name, target / name)
    shutil.copyfile(source / PIPELINE, target / PIPELINE)
    return parts


def replaced_part(pipeline: Path, wanted: str | None) -> str:
    """Which part of a pipeline a network takes the place of."""
    index = read_mapping(pipeline / PIPELINE) if (pipeline / PIPELINE).is_file() else {}
    second = index.get(SECOND)
    has_two = isinstance(second, list) and any(second)
    if wanted is None and has_two:
        raise UserError(f"{pipeline} has two networks; say which is replaced: --replaces {TRANSFORMER} (for high noise "
                        f"levels) or --replaces {SECOND} (for low ones)")  # fmt: skip
    if wanted == SECOND and not has_two:
        raise UserError(f"{pipeline} has no {SECOND} that could be replaced; leave --replaces out")
    return wanted or TRANSFORMER
