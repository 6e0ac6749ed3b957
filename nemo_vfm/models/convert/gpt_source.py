# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A language model's folder as transformers writes it in, GPT's arguments and its parameters, as asked for, out.

Weights are safetensors, in one file or in several; they are read a tensor at a time, and no code of the folder is run.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types import Json
from nemo_vfm.models.convert.gpt_config import arguments_of
from nemo_vfm.models.convert.gpt_weights import names_of, ours
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.pretrained import checked_folder

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_MAX_CONFIG_BYTES = 16 << 20


def is_language_model(folder: Path) -> bool:
    """Whether it looks like a folder of transformers with a language model, of whatever architecture."""
    path = folder / "config.json"
    if not path.is_file() or path.stat().st_size > _MAX_CONFIG_BYTES:
        return False
    try:
        names = json.loads(path.read_bytes()).get("architectures")
    except (ValueError, AttributeError, RecursionError, OSError):
        return False
    return isinstance(names, list) and any(str(name).endswith("ForCausalLM") for name in names)


class GptFolder(Mapping[str, Tensor]):
    """GPT's parameters by name, each read when it is asked for; to be used in a `with`.

    Args:
        folder: with config.json and safetensors.

    Raises:
        UserError: there is no such folder, or its weights are no safetensors.
        DataError: it is damaged, of another architecture, or its weights are not those that config.json implies.
    """

    def __init__(self, folder: Path) -> None:
        self.config = _config(checked_folder(folder))
        self.folder, self.arguments = folder, arguments_of(self.config)
        with torch.device("meta"):
            #: On the meta device: sizes without weights.
            self.model = GPT(**self.arguments)
        self._shapes = {name: tuple(tensor.shape) for name, tensor in self.model.state_dict().items()}
        self._stack, self._files = ExitStack(), dict[str, Any]()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._files = _opened(self.folder, stack)
            self._require_all_used()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Tensor:
        """One parameter."""
        found = ours(self._source(name), _Read(self._files), self.model.sizes)
        if tuple(found.shape) != self._shapes[name]:
            raise DataError(f"{self.folder.name}: {name} has shape {tuple(found.shape)}, and config.json implies "
                            f"{self._shapes[name]}")  # fmt: skip
        return found

    def __iter__(self) -> Iterator[str]:
        """Names, as the model's `state_dict` has them: a tied matrix stands under both of its."""
        return iter(self._shapes)

    def __len__(self) -> int:
        """How many."""
        return len(self._shapes)

    def __contains__(self, name: object) -> bool:
        """Whether there is one, without reading it."""
        return name in self._shapes

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a parameter, without reading it."""
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        """Of a parameter, without reading it.

        Raises:
            DataError: it is of a kind that is no weight of such a model, as quantised ones are.
        """
        source = names_of(self._source(name))[0]
        kind = _slice(self._files, source, self.folder).get_dtype()
        if kind not in _DTYPES:
            raise DataError(f"{self.folder.name}: {source} is of the kind {kind}; known are {', '.join(_DTYPES)}")
        return _DTYPES[kind]

    def num_bytes(self, name: str) -> int:
        """Of a parameter, without reading it."""
        return math.prod(self.shape(name)) * self.dtype(name).itemsize

    def num_values(self) -> int:
        """Of all parameters, tied ones once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def _source(self, name: str) -> str:
        return "embedding.weight" if self.model.tied and name == "head.weight" else name

    def _require_all_used(self) -> None:
        """A weight that is left over would change what the model computes: a bias, an adapter, one more layer."""
        used = {source for name in self._shapes for source in names_of(name)}  # a tied head may lie there as well
        left = [name for name in self._files if name not in used and not name.endswith("rotary_emb.inv_freq")]
        if left:
            raise DataError(
                f"{self.folder.name} has weights that config.json does not imply: {', '.join(sorted(left)[:4])}"
            )


class _Read(Mapping[str, Tensor]):
    """transformers' weights by name, each read when it is asked for."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> Tensor:
        found: Tensor = self._files[name].get_tensor(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _slice(files: Mapping[str, Any], name: str, folder: Path) -> Any:  # safetensors has no type for it
    if name not in files:
        raise DataError(f"{folder.name} has no {name}, which config.json implies; its weights are of another model")
    return files[name].get_slice(name)


def _opened(folder: Path, stack: ExitStack) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            file = stack.enter_context(safe_open(path, "pt"))
        except SafetensorError as error:
            raise DataError(f"{folder.name}/{path.name} is damaged: {error}") from error
        found.update(dict.fromkeys(file.keys(), file))
    return found


def _config(folder: Path) -> dict[str, Json]:
    path = folder / "config.json"
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ValueError("it is far too long")
        config = json.loads(path.read_bytes())
        if not isinstance(config, dict):
            raise ValueError("it is not a mapping")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{folder.name}/config.json cannot be read: {error}") from error
    return config


def require_same_function(model: nn.Module, folder: GptFolder) -> None:
    """UserError where weights of a folder fit a model and mean another function in it.

    Args:
        model: a GPT, or what an engine made of one.
    """
    found = next((part for part in model.modules() if isinstance(part, GPT)), None)
    if found is None:
        raise UserError(f"{folder.folder} is a language model, and what is to begin with its weights has no GPT in it")
    own: dict[str, object] = {"rope": found.rope, "tied": found.tied}
    other: dict[str, object] = {"rope": folder.model.rope, "tied": folder.model.tied}
    for name in ("activation", "norm", "eps"):  # what shapes do not tell
        own[name], other[name] = getattr(found.sizes, name), getattr(folder.model.sizes, name)
    if differ := [f"{name} is {other[name]} there and {own[name]} here" for name in own if own[name] != other[name]]:
        told = "; ".join(differ)
        raise UserError(f"the weights of {folder.folder} would mean another function here: {told}. `nemo-vfm convert "
                        f"{folder.folder} OUT` writes the model that fits")  # fmt: skip
