"""Reads GPT and its weights from a language model's folder of transformers, and writes such a folder.

Weights are written in files of a few gigabytes with an index, as transformers does, one file at a time.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.component import component
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.gpt_source import GptFolder
from nemo_vfm.models.convert.gpt_weights import fused_gates, tensor_map
from nemo_vfm.models.convert.language.config_keys import value_text
from nemo_vfm.models.convert.language.gpt_config import arguments_of, config_of
from nemo_vfm.models.convert.language.gpt_families import FAMILIES
from nemo_vfm.models.convert.weight_files import write_files
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.pretrained import checked_folder, read_mapping
from nemo_vfm.parallel.plan.adapter_split import is_adapter

#: Of transformers: the tokens that end a text, and how the next one is chosen.
GENERATION = "generation_config.json"
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_FILE_BYTES = 4 << 30


def load_gpt(folder: Path, dtype: torch.dtype = torch.float32) -> GPT:
    """The model of a folder, with its weights; see `GptFolder`."""
    with GptFolder(folder) as weights:
        return load_weights(weights, dtype)


def load_weights(weights: GptFolder, dtype: torch.dtype) -> GPT:
    """The model of an open folder, in memory."""
    model = weights.model
    model.to_empty(device="cpu").to(dtype)
    if model.tied:
        model.head.weight = model.embedding.weight
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return model


@component
def gpt_of_folder(*, folder: Path) -> GPT:
    """The model of a folder, with the weights that the seed gives it; `start_from` or `checkpoint` bring the others.

    Args:
        folder: config.json and safetensors of a language model.
    """
    found = checked_folder(local(folder, "the folder of a language model"))
    try:
        return GPT(**arguments_of(read_mapping(found / "config.json")))
    except DataError as error:
        raise DataError(f"{found.name}/{error}") from error


def write_gpt(
    model: GPT, weights: Mapping[str, Tensor], folder: Path, max_tokens: int, *, dtype: torch.dtype | None = None,
    generation: Mapping[str, Json] | None = None, file_bytes: int = _FILE_BYTES,
) -> None:  # fmt: skip
    """Write a folder that transformers loads; it must not be there, or be empty.

    Args:
        model: says what it is; its own weights are not asked for, and may be on the meta device.
        weights: by GPT's names; each is asked for once.
        folder: to write.
        max_tokens: the longest text it was trained on.
        dtype: of the weights written; None leaves them as they are.
        generation: all of generation_config.json, by which transformers ends texts and samples; None ends none.
        file_bytes: a file has at most so many, unless one weight has more.
    """
    config = config_of(model, max_tokens)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give the model its own folder")
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name, _ in model.named_parameters() if not is_adapter(name)]  # a tied matrix is one
    fused = FAMILIES[config["architectures"][0]].fused
    maps = {name: tensor_map(name, model.sizes, fused) for name in names}
    if fused:
        maps = fused_gates(maps, weights)
    kind = write_files(model, maps, weights, folder, file_bytes=file_bytes, dtype=dtype)
    # transformers' own defaults are the tokens 1 and 2, whatever these may be here.
    tokens = {name: (generation or {}).get(name) for name in _TOKENS}
    write_json(folder / GENERATION, generation or {"_from_model_config": False, **tokens})
    # Last: without it nobody takes the folder for a model.
    write_json(folder / "config.json", config | tokens | {"torch_dtype": str(kind).removeprefix("torch.")})


def generation_of(vocab: int, *folders: Path | None) -> dict[str, Json]:
    """All of the first folder's generation_config.json, or the tokens that its config.json names; else empty.

    DataError where a file names a token that is none: a text would then never end.
    """
    found = [folder / name for folder in folders if folder is not None for name in (GENERATION, "config.json")]
    file = next((path for path in found if path.is_file()), None)
    if file is None:
        return {}
    settings = read_mapping(file)
    for name in _TOKENS:
        value = settings.get(name)
        lowest = -1 if name == "pad_token_id" else 0  # where nothing is filled up, some write -1
        if not all(type(one) is int and lowest <= one < vocab for one in _as_token_list(value, name)):
            more = ", or a list of them" if name == "eos_token_id" else ""
            raise DataError(f"{file.name} of {file.parent.name} says {name}: {value_text(value)}; it must be null, a "
                            f"token from 0 to {vocab - 1}{more}")  # fmt: skip
    return settings if file.name == GENERATION else {name: settings[name] for name in _TOKENS if name in settings}


def stop_tokens(generation: Mapping[str, Json]) -> list[int]:
    """Tokens that end a text, in the order of what `generation_of` found."""
    return _as_token_list(generation.get("eos_token_id"), "eos_token_id")


def _as_token_list(value: Json, name: str) -> list[Json]:
    """Only the end may be several tokens."""
    return value if isinstance(value, list) and name == "eos_token_id" else [] if value is None else [value]
