# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads GPT's arguments and, one by one, its parameters from a language model's folder of transformers.

Weights are safetensors, in one file or in several. They are read a tensor at a time, and no code of the folder is run.
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
from nemo_vfm.models.convert.gpt_config import arguments_of
from nemo_vfm.models.convert.gpt_weights import names_of, ours, theirs
from nemo_vfm.models.convert.weight_files import opened, read_mapping
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.pretrained import checked_folder

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_COMPARED_VALUES = 1 << 24  # at once, in float64
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
        self.folder, self.config = folder, read_mapping(checked_folder(folder) / "config.json")
        try:
            self.arguments = arguments_of(self.config)
        except DataError as error:
            raise DataError(f"{folder.name}/{error}") from error
        with ExitStack() as stack:
            self._files = opened(folder, stack)
            self._require_layers()
            #: On the meta device: sizes without weights.
            self.model = _unborn(self.arguments, folder)
            self._shapes = {name: tuple(tensor.shape) for name, tensor in self.model.state_dict().items()}
            self._require_all_used()
            self._require_shapes()
            self._require_tied()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Tensor:
        """One parameter."""
        return ours(self._source(name), _Read(self._files), self.model.sizes)

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
        """Of a parameter, without reading it."""
        kind = self._files[names_of(self._source(name))[0]].get_slice(names_of(self._source(name))[0]).get_dtype()
        return _DTYPES[kind]

    def num_bytes(self, name: str) -> int:
        """Of a parameter, without reading it."""
        return math.prod(self.shape(name)) * self.dtype(name).itemsize

    def num_values(self) -> int:
        """Of all parameters, tied ones once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def _source(self, name: str) -> str:
        return "embedding.weight" if self.model.tied and name == "head.weight" else name

    def _require_layers(self) -> None:
        """By the names alone: to make a model of hundreds of layers that are not there takes seconds."""
        depth = self.arguments["depth"]
        held = {name.split(".")[2] for name in self._files if name.startswith("model.layers.")}
        if len(held) < depth:
            raise DataError(f"{self.folder.name}/config.json says num_hidden_layers: {depth}, and its files hold "
                            f"{len(held)}")  # fmt: skip

    def _require_all_used(self) -> None:
        """A weight that is left over would change what the model computes: a bias, an adapter, one more layer."""
        used = {source for name in self._shapes for source in names_of(name)}  # a tied head may lie there as well
        left = [name for name in self._files if name not in used and not name.endswith("rotary_emb.inv_freq")]
        if left:
            raise DataError(
                f"{self.folder.name} has weights that config.json does not imply: {', '.join(sorted(left)[:4])}"
            )

    def _require_shapes(self) -> None:
        """By the files' headers: before there is memory for a model that is not there."""
        for name, parameter in self.model.named_parameters():
            for source, implied in theirs(name, parameter, self.model.sizes):
                if source not in self._files:
                    raise DataError(f"{self.folder.name} has no {source}, which config.json implies; its weights are "
                                    f"of another model")  # fmt: skip
                header = self._files[source].get_slice(source)
                if (shape := tuple(header.get_shape())) != tuple(implied.shape):
                    raise DataError(f"{self.folder.name}: {source} has shape {shape}, and config.json implies "
                                    f"{tuple(implied.shape)}")  # fmt: skip
                if (kind := header.get_dtype()) not in _DTYPES:
                    raise DataError(f"{self.folder.name}: {source} is of the kind {kind}; known are "
                                    f"{', '.join(_DTYPES)}")  # fmt: skip

    def _require_tied(self) -> None:
        """transformers 5 keeps a head that differs from what it should be tied to, and version 4 drops it."""
        if not self.model.tied or _HEAD not in self._files:
            return
        embedding, head = (self._files[name].get_slice(name) for name in (_EMBEDDING, _HEAD))
        rows = max(1, _COMPARED_VALUES // self.model.width)
        if head.get_shape() != embedding.get_shape() or not all(
            torch.equal(head[start : start + rows].double(), embedding[start : start + rows].double())
            for start in range(0, self.model.vocab, rows)
        ):
            raise DataError(f"{self.folder.name}/config.json says tie_word_embeddings: True, and {_HEAD} differs from "
                            f"{_EMBEDDING}; to keep that head, set it to false (transformers 4 would drop the head, "
                            f"version 5 keeps it)")  # fmt: skip


def _unborn(arguments: Mapping[str, Any], folder: Path) -> GPT:
    try:
        with torch.device("meta"):
            return GPT(**arguments)
    except ValueError as error:
        raise DataError(f"{folder.name}/config.json describes an impossible model: {error}") from error


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


def require_same_function(model: nn.Module, folder: GptFolder) -> None:
    """UserError where weights of a folder fit a model and mean another function in it.

    Args:
        model: a GPT, or what an engine made of one.
    """
    found = next((part for part in model.modules() if isinstance(part, GPT)), None)
    if found is None:
        raise UserError(f"{folder.folder} is a language model, and the model to be initialised has no GPT")
    own: dict[str, object] = {"rope": found.rope, "tied": found.tied}
    other: dict[str, object] = {"rope": folder.model.rope, "tied": folder.model.tied}
    for name in ("activation", "norm", "eps"):  # what shapes do not tell
        own[name], other[name] = getattr(found.sizes, name), getattr(folder.model.sizes, name)
    if differ := [f"{name} is {other[name]} there and {own[name]} here" for name in own if own[name] != other[name]]:
        told = "; ".join(differ)
        raise UserError(f"the weights of {folder.folder} would compute something else here: {told}. `nemo-vfm convert "
                        f"{folder.folder} OUT` writes the matching model")  # fmt: skip
