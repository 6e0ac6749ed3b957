"""Reads the tensors of a checkpoint's groups lazily, whole or only the part that a rank holds; restores optimizers.

Optimizer state is saved as `parameter name/key`. State with a parameter's shape is sharded like the parameter. Every
parameter has its own step count. A shared one would advance once per parameter, which shows only in the second step
after a resume.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from nemo_vfm.core.errors import CorruptCheckpoint
from nemo_vfm.parallel.apply.local_shard import copy_own, local_storage, mismatch, some
from nemo_vfm.parallel.checkpoint import checkpoint_pieces as pieces
from nemo_vfm.parallel.checkpoint import tensor_file
from nemo_vfm.parallel.checkpoint.checkpoint_index import TensorEntry
from nemo_vfm.parallel.checkpoint.checkpoint_pieces import Ints, TensorBox
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import ALONE, exchange, run_on_ranks
from nemo_vfm.parallel.checkpoint.tensor_file import MappedFile
from nemo_vfm.parallel.plan.adapter_split import is_adapter
from nemo_vfm.parallel.ranks.gather import Gather


class SavedTensors(Mapping[str, Tensor]):
    """The tensors of a group by name. `[name]` reads a whole one; `into` and `read` only what is needed of it."""

    def __init__(self, folder: Path, entries: Mapping[str, TensorEntry]) -> None:
        self._folder, self._entries = folder, entries
        self._open: dict[str, MappedFile] = {}
        self._parts: dict[str, dict[str, TensorBox]] = {}
        for name, entry in entries.items():
            for file, box in entry.pieces:
                self._parts.setdefault(file, {})[name] = box

    def __getitem__(self, name: str) -> Tensor:
        """All of a tensor, in memory of its own."""
        entry = self._entries[name]
        return self.read(name, (0,) * len(entry.shape), entry.shape)

    def __iter__(self) -> Iterator[str]:
        """Names."""
        return iter(self._entries)

    def __len__(self) -> int:
        """How many tensors."""
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        """Whether there is one, without reading it."""
        return name in self._entries

    def shape(self, name: str) -> Ints:
        """Of the whole tensor, without reading it."""
        return self._entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Of a tensor, without reading it."""
        return tensor_file.DTYPES[self._entries[name].dtype]

    def num_values(self) -> int:
        """Of all tensors."""
        return sum(math.prod(entry.shape) for entry in self._entries.values())

    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(math.prod(self.shape(name)) * self.dtype(name).itemsize for name in self._entries)

    def read(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """A part of a tensor, put together from files. CorruptCheckpoint if one is not what the index says."""
        box = TensorBox(tuple(offsets), tuple(shape))
        out = torch.empty(box.shape, dtype=self.dtype(name))
        for file, held in self._entries[name].pieces:
            common = box.intersect(held)
            if common is not None:
                out[common.within(box)] = self._part(file, name, held, common)
        return out

    def into(self, name: str, tensor: Tensor) -> None:
        """Fill a tensor, or this rank's part of one that is spread over devices, with what was saved under a name."""
        box = pieces.local_box(name, tensor)
        if box is not None:
            local_storage(tensor).copy_(self.read(name, box.offsets, box.shape))

    def _part(self, file: str, name: str, held: TensorBox, wanted: TensorBox) -> Tensor:
        from safetensors import SafetensorError

        try:
            opened = self._open_file(file)
            # A tensor without dimensions has no slices.
            return opened.part(name, wanted.within(held)) if held.shape else opened.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(f"{self._folder / file} cannot be read ({error}).") from error

    def _open_file(self, file: str) -> MappedFile:
        if file not in self._open:
            # The header, read strictly, holds what the index says that this file does.
            header = tensor_file.read_header(self._folder / file)
            for name, held in self._parts[file].items():
                dtype, shape = self._entries[name].dtype, header.shapes.get(name)
                if shape != held.shape or header.dtypes[name] != dtype:
                    found = "nothing of it" if shape is None else f"{header.dtypes[name]} {list(shape)}"
                    raise CorruptCheckpoint(
                        f"{self._folder / file} should hold {dtype} {list(held.shape)} of {name}, but holds {found}."
                    )
            self._open[file] = MappedFile(self._folder / file)
        return self._open[file]


@runtime_checkable
class UnreadTensors(Protocol):
    """Tensors by name of which shapes and dtypes are known before they are read."""

    def __iter__(self) -> Iterator[str]:
        """Names."""
        ...

    def __getitem__(self, name: str) -> Tensor:
        """All of a tensor, read now."""
        ...

    def shape(self, name: str) -> Ints:
        """Of the whole tensor, without reading it."""
        ...

    def dtype(self, name: str) -> torch.dtype:
        """Of a tensor, without reading it."""
        ...


def dtype_of(weights: Mapping[str, Tensor], name: str) -> torch.dtype:
    """Of one of them; of a saved one without reading it."""
    return weights.dtype(name) if isinstance(weights, UnreadTensors) else weights[name].dtype


def shapes_of(weights: Mapping[str, Tensor]) -> dict[str, Ints]:
    """The whole shape of each tensor; of saved ones without reading them."""
    if isinstance(weights, UnreadTensors):
        return {name: weights.shape(name) for name in weights}
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}


def gather_shapes(own: Mapping[str, Tensor], ranks: Gather) -> dict[str, Ints]:
    """The shapes of the tensors of all ranks: under pipeline parallelism each has others."""
    return {
        name: tuple(shape) for rank_shapes in exchange(ranks, shapes_of(own)) for name, shape in rank_shapes.items()
    }


def fill(own: Mapping[str, Tensor], saved: Mapping[str, Tensor], ranks: Gather = ALONE) -> None:
    """Put saved weights into a model's `state_dict`, each rank its part; every rank must call it.

    CorruptCheckpoint if names or shapes differ, on any rank, with the differences as text; then nothing was filled.
    """
    require_same_weights(gather_shapes(own, ranks), shapes_of(saved))
    put(own, saved, ranks)


def require_same_weights(own: Mapping[str, Ints], saved: Mapping[str, Ints]) -> None:
    """Refuse weights of another model, by their shapes, with the differences as text."""
    surplus = saved.keys() - own.keys()
    if surplus and not any(map(is_adapter, own)) and all(map(is_adapter, surplus)):
        raise CorruptCheckpoint("The checkpoint holds only adapters, as saved by training adapters. Load the model "
                                "that they were trained on, and the adapters beside it: write them with nemo-vfm "
                                "convert RUN FOLDER --adapter ours, and name the folder in adapters.NAME.path."
                                )  # fmt: skip
    if differences := mismatch(own, saved):
        raise CorruptCheckpoint(
            f"The checkpoint is from another model ({differences}). Use the recipe that trained it."
        )  # fmt: skip


def put(own: Mapping[str, Tensor], saved: Mapping[str, Tensor], ranks: Gather = ALONE) -> None:
    """`fill` without asking whether all fits. CorruptCheckpoint if a file is not what the index says; on every rank."""

    def put_own() -> None:
        with torch.no_grad():
            for name, tensor in own.items():
                if isinstance(saved, SavedTensors):
                    saved.into(name, tensor)
                else:
                    copy_own(tensor, saved[name])

    run_on_ranks(ranks, put_own)


State = dict[str, dict[str, Tensor]]
Rows = Mapping[str, tuple[int, int]]


def restore_state(
    saved: Mapping[str, Tensor], parameters: Mapping[str, Tensor], ranks: Gather = ALONE, rows: Rows | None = None
) -> State:
    """The state of this rank's parameters, by name and key, as plain tensors on the CPU; every rank must call it.

    Of a parameter in `rows`, what the rank holds is read from the first row to the one before the second.
    CorruptCheckpoint if there is state for a parameter that no rank has.
    """
    known = {name for names in exchange(ranks, list(parameters)) for name in names}
    if unknown := sorted({name.rpartition("/")[0] for name in saved} - known):
        raise CorruptCheckpoint(
            f"The checkpoint has optimizer state for {some(unknown)!r}; this model has no such parameter."
        )
    found: State = {}

    def restore_own() -> None:
        for name in saved:
            parameter, _, key = name.rpartition("/")
            if parameter in parameters:
                own_rows = None if rows is None else rows.get(parameter)
                found.setdefault(parameter, {})[key] = _value(saved, name, parameters[parameter], own_rows)

    run_on_ranks(ranks, restore_own)
    return found


def _value(saved: Mapping[str, Tensor], name: str, parameter: Tensor, rows: tuple[int, int] | None) -> Tensor:
    read = saved if isinstance(saved, SavedTensors) else None
    if (read.shape(name) if read else tuple(saved[name].shape)) != tuple(parameter.shape):
        return saved[name].clone()  # a count, or what belongs to the whole parameter
    box = pieces.local_box(name, parameter)
    if box is None:  # more ranks than rows: this one has none
        return torch.empty(local_storage(parameter).shape, dtype=dtype_of(saved, name))
    box = box if rows is None else box.rows(*rows)
    if read:
        return read.read(name, box.offsets, box.shape)
    return saved[name][box.within(pieces.full_box(parameter.shape))].clone()
