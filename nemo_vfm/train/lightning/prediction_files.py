"""Writes what a module predicts to Parquet as it comes, and puts the rows of all ranks into the order of the data.

Lightning gives rank r of n the samples r, r + n, r + 2n and so on. So row j of rank r is row jn + r of the whole.
"""

import dataclasses
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.parallel.ranks.process_group import all_reduce_max

_GROUP_BYTES = 16 << 20  # of rows that are held before they are written
_MERGED_ROWS = 4096  # of each rank that are merged at a time
_UNFINISHED = ".predictions"


class PredictionFiles(Callback):
    """Writes each batch's rows; at the end `predictions.parquet`, or `predictions-<i>.parquet` of each loader.

    Args:
        folder: the run folder.
        rank: of this process among those that predict.
        num_ranks: how many predict.
    """

    def __init__(self, folder: WritePath, rank: int, num_ranks: int) -> None:
        self.folder, self.rank, self.num_ranks = folder, rank, num_ranks
        self.rows = 0
        self._parts: dict[int, _RankRows] = {}

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove what a killed run has left."""
        if self.rank == 0:
            shutil.rmtree(self.folder / _UNFINISHED, ignore_errors=True)
            for old in self.folder.iterdir():
                if re.fullmatch(r"predictions(-\d+)?\.parquet", old.name):  # and no file of the user's
                    old.unlink()
            (self.folder / _UNFINISHED).mkdir()
        self._wait()

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Take the rows of a batch; nothing where the module has returned nothing."""
        if outputs is None:
            return
        table = _table(outputs, f"batch {batch_idx}")
        loaders = trainer.predict_loop._combined_loader
        if self.num_ranks > 1 and loaders is not None:  # where nothing else tells where a row belongs
            sampler = getattr(loaders.flattened[dataloader_idx], "batch_sampler", None)
            seen = getattr(sampler, "seen_batch_indices", None)
            if seen and len(seen) > batch_idx and len(seen[batch_idx]) != table.num_rows:
                raise UserError(f"predict_step returned {table.num_rows} rows for the {len(seen[batch_idx])} samples "
                                f"of batch {batch_idx}; several ranks keep the order only of one row a sample: set "
                                f"devices=1")  # fmt: skip
        if dataloader_idx not in self._parts:
            self._parts[dataloader_idx] = _RankRows(self._path(dataloader_idx, self.rank), table.schema)
        self._parts[dataloader_idx].add(table, f"batch {batch_idx}")

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finish the files."""
        for part in self._parts.values():
            part.close()
        self._wait()
        if self.rank == 0:
            loaders = len(trainer.num_predict_batches)
            for loader in range(loaders):
                name = "predictions.parquet" if loaders == 1 else f"predictions-{loader}.parquet"
                parts = [self._path(loader, rank) for rank in range(self.num_ranks)]
                if there := [part for part in parts if part.exists()]:
                    whole = there[0] if len(there) == 1 else _merge(there, self._path(loader, self.num_ranks))
                    self.rows += pq.read_metadata(whole).num_rows
                    whole.rename(self.folder / name)
            shutil.rmtree(self.folder / _UNFINISHED)
        self._wait()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Let go of the files."""
        for part in self._parts.values():
            part.close()

    def _path(self, loader: int, rank: int) -> Path:
        return self.folder / _UNFINISHED / f"{loader}-{rank:05d}.parquet"

    def _wait(self) -> None:
        if self.num_ranks > 1:
            all_reduce_max(0.0)


class _RankRows:
    """A rank's rows of a loader, written in groups."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._writer, self._schema = pq.ParquetWriter(path, schema), schema
        self._held: list[pa.Table] = []

    def add(self, table: pa.Table, where: str) -> None:
        names = self._schema.names
        try:
            fitted = table.select(names).cast(self._schema) if {*names} == {*table.schema.names} else None
        except pa.ArrowException:
            fitted = None
        if fitted is None:
            raise UserError(f"{where} was predicted with the columns {_schema(table.schema)}, but the first with "
                            f"{_schema(self._schema)}; predict_step must return the same for each batch")  # fmt: skip
        self._held.append(fitted)
        if sum(one.nbytes for one in self._held) >= _GROUP_BYTES:
            self._write()

    def close(self) -> None:
        if self._writer.is_open:
            self._write()
            self._writer.close()

    def _write(self) -> None:
        if self._held:
            self._writer.write_table(pa.concat_tables(self._held))
            self._held = []


def _merge(parts: Sequence[Path], path: Path) -> Path:
    """One file of them all: the first rows of all ranks, then their second ones, a few thousand at a time."""
    schema = pa.unify_schemas([pq.read_schema(part) for part in parts], promote_options="permissive")
    with pq.ParquetWriter(path, schema) as writer:
        for pieces in zip_longest(*(_pieces(part) for part in parts)):
            tables = [piece.cast(schema) for piece in pieces if piece is not None]
            ranks = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
            places = np.concatenate([np.arange(table.num_rows) for table in tables])
            writer.write_table(pa.concat_tables(tables).take(pa.array(np.lexsort((ranks, places)))))
    return path


def _pieces(path: Path) -> Iterator[pa.Table]:
    """The rows of a file, so many at a time; only the last piece has fewer."""
    held: list[pa.RecordBatch] = []
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_MERGED_ROWS):
            held.append(batch)
            if sum(one.num_rows for one in held) >= _MERGED_ROWS:
                table = pa.Table.from_batches(held)
                yield table.slice(0, _MERGED_ROWS)
                held = table.slice(_MERGED_ROWS).to_batches()
    if held:
        yield pa.Table.from_batches(held)


def _table(prediction: object, where: str) -> pa.Table:
    """What a `predict_step` has returned, by columns. What is one for all samples is repeated."""
    columns = dict(_columns(prediction, ""))
    lengths = {len(one) for one in columns.values() if isinstance(one, np.ndarray | list)}
    if len(lengths) > 1:
        sizes = ", ".join(f"{name} {len(one)}" for name, one in columns.items() if isinstance(one, np.ndarray | list))
        raise UserError(
            f"{where} was predicted with columns of different lengths ({sizes}); each needs one row a sample"
        )
    rows = next(iter(lengths), 1)
    try:
        arrays = {name: _array(one if isinstance(one, np.ndarray | list) else [one] * rows)
                  for name, one in columns.items()}  # fmt: skip
    except pa.ArrowException as error:
        raise UserError(f"{where} was predicted with values that no Parquet column can hold: {error}") from error
    return pa.table(arrays)


def _columns(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """(name, values of all samples, or one value for all of them)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    value = value._asdict() if hasattr(value, "_asdict") else value
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):  # one of each sample
        value = {key: [_value(one.get(key)) for one in value] for key in dict.fromkeys(k for one in value for k in one)}
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _columns(below, f"{name}.{key}" if name else str(key))
    elif isinstance(value, tuple) or (isinstance(value, list) and any(map(_is_array, value))):
        for number, below in enumerate(value):
            yield from _columns(below, f"{name or 'prediction'}_{number}")
    else:
        yield name or "prediction", _numpy(value) if _is_array(value) else value


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray | Mapping)


def _numpy(value: Tensor | np.ndarray) -> Any:
    """An array with a row a sample; a number where there is no dimension."""
    if isinstance(value, Tensor):
        dense = value.detach().cpu().to_dense() if value.layout != torch.strided else value.detach().cpu()
        value = (dense.float() if dense.dtype in (torch.bfloat16, torch.float16) else dense).numpy()
    return value if value.ndim else value.item()


def _value(value: object) -> object:
    found = _numpy(value) if isinstance(value, Tensor | np.ndarray) else value
    return found.tolist() if isinstance(found, np.ndarray) else found


def _array(values: Any) -> pa.Array:
    """A column; further dimensions become lists in lists."""
    if not isinstance(values, np.ndarray) or values.ndim == 1:
        return pa.array(values)
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        offsets = np.arange(prod(values.shape[:axis]) + 1, dtype=np.int32) * values.shape[axis]
        column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), column)
    return column


def _schema(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)
