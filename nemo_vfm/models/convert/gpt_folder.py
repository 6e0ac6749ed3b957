# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Loads GPT with its weights from a language model's folder of transformers, and writes such a folder.

Weights are written in files of a few gigabytes with an index, as transformers does, one file at a time.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision, PrecisionName
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.component import component
from nemo_vfm.models.convert.gpt_config import config_of
from nemo_vfm.models.convert.gpt_families import FAMILIES
from nemo_vfm.models.convert.gpt_source import GptFolder
from nemo_vfm.models.convert.gpt_weights import fused_gates, tensor_map
from nemo_vfm.models.convert.weight_files import write_files
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.apply.adapter_split import is_adapter

_FILE_BYTES = 4 << 30


def load_gpt(folder: Path, dtype: torch.dtype = torch.float32) -> GPT:
    """The model of a folder.

    Raises:
        UserError: there is no such folder, or its weights are no safetensors.
        DataError: it is damaged, of another architecture, or has weights that config.json does not imply.
    """
    with GptFolder(folder) as weights:
        return filled(weights, dtype)


def filled(weights: GptFolder, dtype: torch.dtype) -> GPT:
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
def gpt_of_folder(*, folder: Path, precision: PrecisionName = "auto") -> GPT:
    """The model of a folder, for a recipe that asks it for something; a training begins with `start_from` instead.

    Args:
        folder: config.json and safetensors.
        precision: of its weights: auto, bf16 or fp32.
    """
    return load_gpt(local(folder, "the folder of a language model"), Precision(precision).resolved()[0])


def save_gpt(model: GPT, folder: Path, most_tokens: int) -> None:
    """Write a folder that transformers loads; see `write_gpt`.

    Args:
        model: whole, on one device.
        folder: to write; it must not be there, or be empty.
        most_tokens: the longest text it was trained on.
    """
    write_gpt(model, dict(model.named_parameters()), folder, most_tokens)


def write_gpt(
    model: GPT, weights: Mapping[str, Tensor], folder: Path, most_tokens: int, *, dtype: torch.dtype | None = None,
    end: int | None = None, file_bytes: int = _FILE_BYTES,
) -> None:  # fmt: skip
    """Write a folder that transformers loads; it must not be there, or be empty.

    Args:
        model: says what it is; its own weights are not asked for, and may be on the meta device.
        weights: by GPT's names; each is asked for once.
        folder: to write.
        most_tokens: the longest text it was trained on.
        dtype: of the weights written; None leaves them as they are.
        end: the token after a document's last, with which transformers ends what it generates; None names none.
        file_bytes: a file has at most so many, unless one weight has more.

    Raises:
        UserError: there is something in the folder.
        DataError: no architecture of transformers is the same function.
    """
    config = config_of(model, most_tokens)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give a folder of its own for the model")
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name, _ in model.named_parameters() if not is_adapter(name)]  # a tied matrix is one
    fused = FAMILIES[config["architectures"][0]].fused
    maps = {name: tensor_map(name, model.sizes, fused) for name in names}
    if fused:
        maps = fused_gates(maps, weights)
    kind = write_files(model, maps, weights, folder, file_bytes=file_bytes, dtype=dtype)
    # transformers' own defaults are the tokens 1 and 2, whatever these may be here.
    ends = {"bos_token_id": None, "eos_token_id": end, "pad_token_id": None}
    write_json(folder / "generation_config.json", {"_from_model_config": False, **ends})
    # Last: without it nobody takes the folder for a model.
    write_json(folder / "config.json", config | ends | {"torch_dtype": str(kind).removeprefix("torch.")})
