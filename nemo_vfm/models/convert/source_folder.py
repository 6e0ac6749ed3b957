"""Reads a model's parameters, one by one, from the safetensors of another library's folder.

Sizes are known from the files' headers, and compared with the model's before there is memory for any weight.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.convert.tensor_map import TensorMap
from nemo_vfm.models.convert.tensor_source import TensorSource
from nemo_vfm.models.pretrained import fingerprint_of

Model = TypeVar("Model", bound=nn.Module)
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class SourceFolder(Mapping[str, Tensor]):
    """A model's parameters by our names, each read when it is asked for; to be used in a `with`.

    Its heirs open files and say what they hold.
    """

    folder: Path
    #: On the meta device: sizes without weights.
    model: nn.Module
    _files: Mapping[str, TensorSource]
    _maps: Mapping[str, TensorMap]
    _stack: ExitStack
    #: Names of what is not read at all.
    _others: Sequence[str] = ()
    #: What says which weights there have to be.
    _implied_by = "config.json"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Tensor:
        found = self._map_of(name)
        return found.join([self._files[source].get_tensor(source) for source in found.names])

    def __iter__(self) -> Iterator[str]:
        """Names, as the model's `state_dict` has them: a tied matrix stands under both of its."""
        return iter(self._maps)

    def __len__(self) -> int:
        return len(self._maps)

    def __contains__(self, name: object) -> bool:
        """Whether there is one, without reading it."""
        return name in self._maps

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a parameter, without reading it."""
        return tuple(self.model.get_parameter(name).shape)

    def dtype(self, name: str) -> torch.dtype:
        """Of a parameter, without reading it: of what it is joined from, the widest."""
        kinds = [DTYPES[self._files[source].get_slice(source).get_dtype()] for source in self._map_of(name).names]
        return max(kinds, key=lambda kind: kind.itemsize)

    def num_bytes(self, name: str) -> int:
        """Of a parameter, without reading it."""
        return math.prod(self.shape(name)) * self.dtype(name).itemsize

    def num_values(self) -> int:
        """Of all parameters, tied ones once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def sources(self) -> dict[str, tuple[str, ...]]:
        """Names there of what each parameter is joined from."""
        return {name: found.names for name, found in self._maps.items()}

    def left(self) -> list[str]:
        """What is there that no parameter needs, and that changes nothing."""
        return sorted(self._unused() | {*self._others})

    def fingerprint(self) -> str:
        """Changes with any byte of what is read."""
        return fingerprint_of(self.folder)

    def require_same_function(self, model: nn.Module) -> None:
        """UserError where weights of the folder fit a model and mean another function in it.

        Not where files are converted together with the model that they mean.
        """

    def _require_equal(self, own: Mapping[str, object], other: Mapping[str, object]) -> None:
        if differ := [
            f"{name} is {other[name]} there and {own[name]} here" for name in own if own[name] != other[name]
        ]:
            raise UserError(f"the weights of {self.folder} would compute something else here: {'; '.join(differ)}. "
                            f"`nemo-vfm convert {self.folder} OUT` writes the matching model")  # fmt: skip

    def _map_of(self, name: str) -> TensorMap:
        return self._maps[name]

    def _unused(self) -> set[str]:
        return set(self._files) - {source for found in self._maps.values() for source in found.names}

    def _require_all_used(self, but: Collection[str] = ()) -> None:
        """A weight that is left over would change what the model computes: a bias, an adapter, one more layer."""
        if left := sorted(self._unused() - set(but)):
            raise DataError(f"{self.folder.name} has weights that {self._implied_by} does not imply: "
                            f"{', '.join(left[:4])}")  # fmt: skip

    def _require_shapes(self) -> None:
        """By the files' headers: before there is memory for a model that is not there."""
        for name, parameter in self.model.named_parameters():
            found = self._maps[name]
            for source, part in zip(found.names, found.split(parameter), strict=True):
                if source not in self._files:
                    raise DataError(f"{self.folder.name} has no {source}, which {self._implied_by} implies; its "
                                    f"weights are of another model")  # fmt: skip
                header, implied = self._files[source].get_slice(source), tuple(part.shape)
                if (shape := tuple(header.get_shape())) != implied:
                    raise DataError(f"{self.folder.name}: {source} has shape {shape}, and {self._implied_by} implies "
                                    f"{implied}")  # fmt: skip
                if (kind := header.get_dtype()) not in DTYPES:
                    raise DataError(f"{self.folder.name}: {source} is of the kind {kind}; known are "
                                    f"{', '.join(DTYPES)}")  # fmt: skip

    def _require_blocks(self, prefix: str, depth: int, key: str) -> None:
        """By the names alone: to make a model of hundreds of layers that are not there takes seconds."""
        place = prefix.count(".")
        held = {name.split(".")[place] for name in self._files if name.startswith(prefix)}
        if len(held) < depth:
            raise DataError(f"{self.folder.name}/config.json says {key}: {depth}, and its files hold {len(held)}")


def without_memory(kind: Callable[..., Model], arguments: Mapping[str, Any], what: str) -> Model:
    """A model on the meta device.

    Args:
        kind: of the model.
        arguments: of its constructor.
        what: describes it, such as "config.json describes".

    Raises:
        DataError: there can be no such model.
    """
    try:
        with torch.device("meta"):
            return kind(**arguments)
    except ValueError as error:
        raise DataError(f"{what} an impossible model: {error}") from error
