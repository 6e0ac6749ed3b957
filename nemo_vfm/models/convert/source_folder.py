"""Reads a model's parameters, one by one, from the safetensors of another library's folder.

Sizes are known from the files' headers, and compared with the model's before there is memory for any weight.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.convert.tensor_map import TensorMap
from nemo_vfm.models.convert.tensor_source import LazyTensors, UnreadTensor, kind_of
from nemo_vfm.models.pretrained import fingerprint_of

Model = TypeVar("Model", bound=nn.Module)
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class SourceFolder(LazyTensors):
    """A model's parameters by our names, each read when it is asked for; to be used in a `with`.

    Its heirs open files, say what they hold, and call `_take`. Names are those of the model's `state_dict`: a tied
    matrix stands under both of its.
    """

    folder: Path
    #: On the meta device: sizes without weights.
    model: nn.Module
    _files: Mapping[str, UnreadTensor]
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

    def num_bytes(self) -> int:
        """Of all parameters."""
        return sum(math.prod(self.shape(name)) * self.dtype(name).itemsize for name in self)

    def num_values(self) -> int:
        """Of all parameters, tied ones once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def sources(self) -> dict[str, tuple[str, ...]]:
        """Names there of what each parameter is joined from."""
        return {name: found.names for name, found in self._maps.items()}

    def unused_names(self) -> list[str]:
        """What is there that no parameter needs, and that changes nothing."""
        return sorted(self._unused_tensors() | {*self._others})

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

    def _unused_tensors(self) -> set[str]:
        return set(self._files) - {source for found in self._maps.values() for source in found.names}

    def _take(self, but: Collection[str] = ()) -> None:
        """Make the parameters of what the files hold, by their headers: before there is memory for a model.

        A weight that is left over, and not among `but`, would change what the model computes: a bias, an adapter, one
        more layer.
        """
        if left := sorted(self._unused_tensors() - set(but)):
            raise DataError(f"{self.folder.name} has weights that {self._implied_by} does not imply: "
                            f"{', '.join(left[:4])}")  # fmt: skip
        self._tensors = taken = dict[str, UnreadTensor]()
        for name, parameter in self.model.named_parameters():
            found, stored = self._maps[name], list[UnreadTensor]()
            for source, part in zip(found.names, found.split(parameter), strict=True):
                if source not in self._files:
                    raise DataError(f"{self.folder.name} has no {source}, which {self._implied_by} implies; its "
                                    f"weights are of another model")  # fmt: skip
                stored.append(self._files[source])
                if stored[-1].shape != (implied := tuple(part.shape)):
                    raise DataError(f"{self.folder.name}: {source} has shape {stored[-1].shape}, and "
                                    f"{self._implied_by} implies {implied}")  # fmt: skip
                if (kind := stored[-1].kind) not in _DTYPES:
                    raise DataError(f"{self.folder.name}: {source} is of the kind {kind}; known are "
                                    f"{', '.join(_DTYPES)}")  # fmt: skip
            widest = max((_DTYPES[one.kind] for one in stored), key=lambda dtype: dtype.itemsize)
            taken[name] = UnreadTensor(kind_of(widest), tuple(parameter.shape), partial(_read_joined, found, stored))

    def _require_blocks(self, prefix: str, depth: int, key: str) -> None:
        """By the names alone: to make a model of hundreds of layers that are not there takes seconds."""
        place = prefix.count(".")
        held = {name.split(".")[place] for name in self._files if name.startswith(prefix)}
        if len(held) < depth:
            raise DataError(f"{self.folder.name}/config.json says {key}: {depth}, and its files hold {len(held)}")


def _read_joined(found: TensorMap, stored: Sequence[UnreadTensor]) -> Tensor:
    return found.join([one.read() for one in stored])


def without_memory(kind: Callable[..., Model], arguments: Mapping[str, Any], what: str) -> Model:
    """A model on the meta device; DataError where there can be none. `what` is such as "config.json describes"."""
    try:
        with torch.device("meta"):
            return kind(**arguments)
    except ValueError as error:
        raise DataError(f"{what} an impossible model: {error}") from error
