# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A language model's folder as transformers writes it in, GPT with its weights out; and the way back.

Weights are safetensors, in one file or in several with an index; they are read a tensor at a time, and no code of the
folder is run.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.files import write_json
from nemo_vfm.core.place import local
from nemo_vfm.core.precision import Precision, PrecisionName
from nemo_vfm.models.convert.gpt_config import arguments_of, config_of
from nemo_vfm.models.convert.gpt_weights import names_of, ours, theirs
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.pretrained import checked_folder


def load_gpt(folder: Path, dtype: torch.dtype = torch.float32) -> GPT:
    """The model of a folder.

    Raises:
        UserError: there is no such folder, or its weights are no safetensors.
        DataError: it is damaged, of another architecture, or has weights that config.json does not imply.
    """
    config = _config(checked_folder(folder))
    with torch.device("meta"):
        model = GPT(**arguments_of(config))
    model.to_empty(device="cpu").to(dtype)
    if model.tied:
        model.head.weight = model.embedding.weight
    with ExitStack() as opened:
        weights = _Weights(folder, opened)
        for name, parameter in model.named_parameters():
            found = ours(name, weights, model.sizes)
            if found.shape != parameter.shape:
                raise DataError(
                    f"{folder.name}: {name} has shape {tuple(found.shape)}, and config.json implies "
                    f"{tuple(parameter.shape)}"
                )
            with torch.no_grad():
                parameter.copy_(found)
        _require_all_used(folder, model, weights)
    return model


def gpt_of_folder(*, folder: Path, precision: PrecisionName = "auto") -> GPT:
    """The model of a folder, for a recipe that asks it for something; a training begins with `start_from` instead.

    Args:
        folder: config.json and safetensors.
        precision: of its weights: auto, bf16 or fp32.
    """
    return load_gpt(local(folder, "the folder of a language model"), Precision(precision).resolved()[0])


def save_gpt(model: GPT, folder: Path, most_tokens: int) -> None:
    """Write a folder that transformers loads; it must not be there, or be empty.

    Args:
        model: whole, on one device.
        folder: to write.
        most_tokens: the longest text it was trained on.

    Raises:
        UserError: there is something in the folder.
        DataError: no architecture of transformers is the same function.
    """
    from safetensors.torch import save_file

    config = config_of(model, most_tokens)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give a folder of its own for the model")
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(
        pair for name, tensor in model.named_parameters() for pair in theirs(name, tensor.detach(), model.sizes)
    )
    save_file({name: tensor.contiguous().clone() for name, tensor in weights.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip
    write_json(folder / "config.json", config)  # last: without it nobody takes the folder for a model


def _config(folder: Path) -> dict[str, object]:
    try:
        config = json.loads((folder / "config.json").read_text())
        assert isinstance(config, dict)
    except (OSError, ValueError, AssertionError) as error:
        raise DataError(f"{folder.name}/config.json cannot be read: {error}") from error
    return config


class _Weights(Mapping[str, Tensor]):
    """All tensors of a folder by name, each read when it is asked for."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        from safetensors import SafetensorError, safe_open

        self._files = {}
        for path in sorted(folder.glob("*.safetensors")):
            try:
                file = opened.enter_context(safe_open(path, "pt"))
            except SafetensorError as error:
                raise DataError(f"{folder.name}/{path.name} is damaged: {error}") from error
            self._files.update(dict.fromkeys(file.keys(), file))

    def __getitem__(self, name: str) -> Tensor:
        found: Tensor = self._files[name].get_tensor(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _require_all_used(folder: Path, model: GPT, weights: Mapping[str, Tensor]) -> None:
    """A weight that is left over would change what the model computes: a bias, an adapter, one more layer."""
    used = {source for name, _ in model.named_parameters(remove_duplicate=False) for source in names_of(name)}
    left = [name for name in weights if name not in used and not name.endswith("rotary_emb.inv_freq")]
    if left:
        raise DataError(f"{folder.name} has weights that config.json does not imply: {', '.join(sorted(left)[:4])}")
