"""Keeps Lightning's checkpoints to what can be read back without running code: tensors, plain values, a few classes."""

import sys
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from io import BytesIO
from pathlib import Path, PosixPath, PurePosixPath
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.cloud_io import _load
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals, get_unsafe_globals_in_checkpoint

from nemo_vfm.core import log, ranks

_MULTIARRAY = np.float32(0).__reduce__()[0].__module__  # numpy has renamed it
_NUMBERS = "?bhilqBHILQefdgFDGSUMm"  # letters of numpy's types whose values hold no pointers and no fields
_PLAIN = (str, int, float, bool, type(None), torch.Tensor)
#: Beside what torch reads with weights_only: values that change nothing but themselves when they are made.
SAFE: tuple[Any, ...] = (
    Namespace, PosixPath, PurePosixPath, OrderedDict, defaultdict, frozenset, range, slice, bytes, list, dict, set, int,
    float,
)  # fmt: skip


class _Dtype:
    """Stands for a type of numpy's while a file is read: numpy takes the state of its own unseen, and may crash."""

    def __init__(self, code: str, *_: Any) -> None:
        self.made = np.dtype(code)
        if self.made.char not in _NUMBERS or self.made.fields or self.made.subdtype:
            raise UnpicklingError(f"an array of {self.made} is not read")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, *structure = state[:5]
        if any(one is not None for one in structure):
            raise UnpicklingError("an array with fields is not read")
        if self.made.char in "Mm" and len(state) > 8:  # its last is ({}, (unit, how many, ...))
            unit, count = state[8][1][:2]
            self.made = np.dtype(
                f"{self.made.char}8" + (f"[{int(count)}{unit.decode()}]" if unit != b"generic" else "")
            )
        self.made = self.made.newbyteorder(order)


class _Array:
    """Stands for an array of numpy's while a file is read; `_with_arrays` puts the array in its place."""

    value: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, data = state
        self.value = np.ndarray(shape, dtype.made, bytearray(data), order="F" if is_fortran else "C")


def _scalar(dtype: _Dtype, data: bytes) -> Any:
    return np.frombuffer(data, dtype.made)[0] if dtype.made.itemsize else dtype.made.type()


_OF_NUMPY: dict[str, Callable[..., Any]] = {
    "numpy.dtype": _Dtype, "numpy.ndarray": _Array, f"{_MULTIARRAY}._reconstruct": lambda *_: _Array(),
    f"{_MULTIARRAY}.scalar": _scalar,
}  # fmt: skip


def read(file: Path | BytesIO) -> Any:
    """The values of a checkpoint, on the CPU; of imported enums, members. UnpicklingError if it holds other objects."""
    enums = _enums(get_unsafe_globals_in_checkpoint(file))
    if isinstance(file, BytesIO):
        file.seek(0)
    named: list[Any] = [(one, name) for name, one in (_OF_NUMPY | enums).items()]
    before = get_safe_globals()  # what a module's code lets torch read counts; Megatron lets it read numpy's own types
    others = [one for one in before if not (one[1] if isinstance(one, tuple) else one.__module__).startswith("numpy")]
    try:
        clear_safe_globals()
        add_safe_globals([*others, *SAFE, *named])
        return _with_arrays(_load(file, map_location=lambda storage, _: storage, weights_only=True))
    finally:
        clear_safe_globals()
        add_safe_globals(before)


def _with_arrays(value: Any) -> Any:
    """The same containers, with arrays where `_Array` stood for them."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            value[key] = _with_arrays(one)
    elif type(value) is tuple:
        return tuple(map(_with_arrays, value))
    elif isinstance(value, Namespace):
        _with_arrays(vars(value))
    return value


def foreign_classes(file: Path) -> list[str]:
    """Of what, by their names, `read` would refuse a checkpoint."""
    known = {f"{one.__module__}.{one.__name__}" for one in SAFE} | _OF_NUMPY.keys()
    unsafe = get_unsafe_globals_in_checkpoint(file)
    return sorted(set(unsafe) - known - _enums(unsafe).keys())


def _enums(names: Iterable[str]) -> dict[str, Callable[[Any], Enum]]:
    """Those names that are enums of modules which are imported already: nothing is imported for a checkpoint.

    A file gets a partial that gives a member, not the class: torch would let it change what it can make.
    """
    places = {name: name.rpartition(".") for name in names}
    found = {name: getattr(sys.modules.get(module), last, None) for name, (module, _, last) in places.items()}
    kinds = {name: one for name, one in found.items() if isinstance(one, type) and issubclass(one, Enum)}
    return {name: partial(one) for name, one in kinds.items() if one.__members__}


def can_be_read_back(value: object) -> bool:
    """Whether a checkpoint may hold it."""
    if type(value) in _PLAIN:
        return True
    if isinstance(value, nn.Module):  # it need not be copied to know
        return False
    buffer = BytesIO()
    try:
        torch.save(value, buffer)  # noqa: TID251 - it stays in memory, and is read as checkpoints are
        buffer.seek(0)
        read(buffer)
    except Exception:  # of pickle, of torch, or of the value's own code
        return False
    return True


def first_unreadable(value: Any, place: str = "") -> str | None:
    """The key and the class of the first value in a checkpoint that cannot be read back."""
    if type(value) in (dict, OrderedDict):
        parts = [(str(key), one) for key, one in value.items()]
    elif type(value) in (list, tuple):
        parts = [(str(number), one) for number, one in enumerate(value)]
    else:
        kind = type(value)
        return None if can_be_read_back(value) else f"{place} (a {kind.__module__}.{kind.__qualname__})"
    for name, one in parts:
        if found := first_unreadable(one, f"{place}.{name}" if place else name):
            return found
    return None


class PlainHyperparameters(Callback):
    """Leaves out of checkpoints those hyperparameters that could not be read back, such as a network, and says which.

    Nothing needs them to resume: the recipe has all arguments.
    """

    def __init__(self) -> None:
        self._left_out: set[tuple[str, str]] = set()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at all, and say what is left out."""
        for owner in filter(None, (pl_module, getattr(trainer, "datamodule", None))):
            self._plain_values(type(owner).__name__, owner.hparams)
        if self._left_out and ranks.is_first():
            names = ", ".join(sorted(f"{owner}.{name}" for owner, name in self._left_out))
            log.info(f"hyperparameters that are not plain values are left out of checkpoints: {names}; give them as "
                     f"arguments to load_from_checkpoint")  # fmt: skip

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Replace them by those that are plain."""
        for owner in filter(None, (pl_module, getattr(trainer, "datamodule", None))):
            if (key := owner.CHECKPOINT_HYPER_PARAMS_KEY) in checkpoint:
                checkpoint[key] = self._plain_values(type(owner).__name__, checkpoint[key])
                checkpoint.pop(owner.CHECKPOINT_HYPER_PARAMS_TYPE, None)  # of a configuration, now a dict

    def _plain_values(self, owner: str, values: Mapping[str, Any]) -> dict[str, Any]:
        plain = {}
        for name in values:
            value = None if (owner, name) in self._left_out else _to_builtin(values, name)
            if (owner, name) in self._left_out or not can_be_read_back(value):
                self._left_out.add((owner, name))
            else:
                plain[name] = value
        return plain


def _to_builtin(values: Any, key: Any) -> Any:
    """A value; mappings and lists of other classes, such as a configuration's, are made of Python's own."""
    try:
        value = values[key]
        if isinstance(value, Mapping) and type(value) not in (dict, OrderedDict, defaultdict, Counter):
            return {name: _to_builtin(value, name) for name in value}
        if isinstance(value, Sequence) and not isinstance(value, (str, bytes, list, tuple, range)):
            return [_to_builtin(value, number) for number in range(len(value))]
    except Exception as error:  # a configuration's reference to what is not there
        return error
    return value
