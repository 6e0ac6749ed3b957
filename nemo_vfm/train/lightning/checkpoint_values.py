# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps Lightning's checkpoints to what can be read back without running code: tensors, plain values, a few classes."""

import sys
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from io import BytesIO
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.cloud_io import _load
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from nemo_vfm.core import log, ranks

_OF_NUMPY = np.dtype(np.float32).__reduce__()[0], np.float32(0).__reduce__()[0], np.zeros(1).__reduce__()[0], np.ndarray
_DTYPES = tuple({type(np.dtype(code)) for code in "?bhilqBHILQefdgFDGSUVMmO"})
_PLAIN = (str, int, float, bool, type(None), torch.Tensor)
#: Beside what torch reads with weights_only: values that change nothing but themselves when they are made.
SAFE: tuple[Any, ...] = (
    *_OF_NUMPY, *_DTYPES, Namespace, PosixPath, PurePosixPath, OrderedDict, defaultdict, frozenset, range, slice,
    bytes, list, dict, set, int, float,
)  # fmt: skip


def read(file: Path | BytesIO) -> Any:
    """The values of a checkpoint, on the CPU; of an enum that is imported already, its members.

    Raises:
        UnpicklingError: it holds objects of other classes.
    """
    enums = _enums(get_unsafe_globals_in_checkpoint(file))
    if isinstance(file, BytesIO):
        file.seek(0)
    with safe_globals([*SAFE, *enums.values()]):
        return _load(file, map_location=lambda storage, _: storage, weights_only=True)


def foreign_classes(file: Path) -> list[str]:
    """Of what, by their names, `read` would refuse a checkpoint."""
    known = {f"{one.__module__}.{one.__name__}" for one in SAFE}
    unsafe = get_unsafe_globals_in_checkpoint(file)
    return sorted(set(unsafe) - known - _enums(unsafe).keys())


def _enums(names: Iterable[str]) -> dict[str, type[Enum]]:
    """Those names that are enums of modules which are imported already: nothing is imported for a checkpoint."""
    places = {name: name.rpartition(".") for name in names}
    found = {name: getattr(sys.modules.get(module), last, None) for name, (module, _, last) in places.items()}
    return {name: one for name, one in found.items() if isinstance(one, type) and issubclass(one, Enum)}


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
            self._plain(type(owner).__name__, owner.hparams)
        if self._left_out and ranks.is_first():
            names = ", ".join(sorted(f"{owner}.{name}" for owner, name in self._left_out))
            log.info(f"hyperparameters that are no plain values are left out of checkpoints: {names}; give them as "
                     f"arguments to load_from_checkpoint")  # fmt: skip

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Replace them by those that are plain."""
        for owner in filter(None, (pl_module, getattr(trainer, "datamodule", None))):
            if (key := owner.CHECKPOINT_HYPER_PARAMS_KEY) in checkpoint:
                checkpoint[key] = self._plain(type(owner).__name__, checkpoint[key])
                checkpoint.pop(owner.CHECKPOINT_HYPER_PARAMS_TYPE, None)  # of a configuration, now a dict

    def _plain(self, owner: str, values: Mapping[str, Any]) -> dict[str, Any]:
        plain = {}
        for name in values:
            value = None if (owner, name) in self._left_out else _simple(values, name)
            if (owner, name) in self._left_out or not can_be_read_back(value):
                self._left_out.add((owner, name))
            else:
                plain[name] = value
        return plain


def _simple(values: Any, key: Any) -> Any:
    """A value; mappings and lists of other classes, such as a configuration's, are made of Python's own."""
    try:
        value = values[key]
        if isinstance(value, Mapping) and type(value) not in (dict, OrderedDict, defaultdict, Counter):
            return {name: _simple(value, name) for name in value}
        if isinstance(value, Sequence) and not isinstance(value, (str, bytes, list, tuple, range)):
            return [_simple(value, number) for number in range(len(value))]
    except Exception as error:  # a configuration's reference to what is not there
        return error
    return value
