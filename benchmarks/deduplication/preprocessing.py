"""Measures CPU seconds from the file to transformed batches, and the bytes of these batches.

The transforms are those that ranking models use most (DPP, 2108.09373): ids are hashed into their table and the last
ones of a row are kept. One side transforms a row a sample, the other one what the table stores: unique rows, and the
buffers of windows. Both take a row group at once and cut batches of it.
"""

import time
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged, slice_positions
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_fingerprint import mix64_
from nemo_vfm.sparse.windowed_rows import WindowedRows

KEPT, HASHED_INTO = 40, 1 << 20  # ids of a history of 48; rows of a table
_AT_ONCE = 1 << 14  # values that are hashed while they are in the cache


def plain_batches(table: FeatureTable, number: int, batch_size: int) -> Iterator[FeatureBatch]:
    """A row a sample of every feature."""
    chunk = table.read(*table.row_groups[number : number + 2])
    yield from _cut(as_batch(chunk, _transformed(chunk.features), {}), batch_size)


def unique_batches(table: FeatureTable, number: int, batch_size: int) -> Iterator[FeatureBatch]:
    """Groups as they are stored."""
    stored = table.load_row_group(number)
    unique = {name: rows for its in stored.unique.values() for name, rows in its.items()}
    done = _transformed({**stored.samples.features, **unique})
    groups = {
        group: DedupedGroup({name: done[name] for name in its}, stored.inverses[group])
        for group, its in stored.unique.items()
    }
    features = {name: done[name] for name in stored.samples.features}
    yield from _cut(as_batch(stored.samples, features, groups), batch_size)


def _cut(batch: FeatureBatch, batch_size: int) -> Iterator[FeatureBatch]:
    """Batches of a row group."""
    for begin in range(0, len(batch), batch_size):
        yield batch.rows(begin, min(begin + batch_size, len(batch)))


def as_batch(
    chunk: LogChunk, features: Mapping[str, Jagged], groups: Mapping[str, DedupedGroup], index: int = 0
) -> FeatureBatch:
    """Of a chunk's labels and dense numbers, and these features."""
    return FeatureBatch(
        index, chunk.ids_B, torch.ones(len(chunk)), chunk.dense_BF, chunk.labels, features, groups
    )  # fmt: skip


def measured(plain: FeatureTable, unique: FeatureTable, batch_size: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of both sides, and bytes of all batches, by row group; after an unmeasured round.

    The sides take turns at each row group, so that other work on the machine slows both.
    """
    found: dict[str, list[float]] = {"plain_s": [], "unique_s": [], "plain_bytes": [], "unique_bytes": []}
    for round_ in range(rounds + 1):
        plain, unique = _reopened(plain), _reopened(unique)
        for number in range(len(plain.row_groups) - 1):
            _measure("plain", plain_batches(plain, number, batch_size), found)
            _measure("unique", unique_batches(unique, number, batch_size), found)
        if not round_:
            for figures in found.values():
                figures.clear()
    return found


def _measure(side: str, batches: Iterable[FeatureBatch], found: Mapping[str, list[float]]) -> None:
    """A row group of a side, from the file to its last batch."""
    begin = time.process_time()
    size = sum(map(batch_bytes, batches))
    found[f"{side}_s"].append(time.process_time() - begin)
    found[f"{side}_bytes"].append(size)


def batch_bytes(batch: FeatureBatch) -> int:
    """Of all tensors that would be sent to a device."""
    jagged = [*batch.features.values(), *(rows for group in batch.groups.values() for rows in group.features.values())]
    tensors = [batch.ids_B, batch.weight_B, batch.dense_BF, *batch.labels.values()]
    tensors += [tensor for rows in jagged for tensor in (rows.values_N, rows.lengths_B)]
    return sum(tensor.nbytes for tensor in [*tensors, *(group.inverse_B for group in batch.groups.values())])


def _reopened(table: FeatureTable) -> FeatureTable:
    """With its manifest read and nothing decoded."""
    reopened = FeatureTable(table.folder)
    assert reopened.manifest
    return reopened


def _transformed(features: Mapping[str, Jagged | WindowedRows]) -> dict[str, Jagged]:
    """Of all features, with one pass of hashing. A window's buffer is hashed once, and its rows are then cut of it."""
    kept = {name: rows if isinstance(rows, WindowedRows) else _last(rows) for name, rows in features.items()}
    values = [rows.buffer_K if isinstance(rows, WindowedRows) else rows.values_N for rows in kept.values()]
    hashed = torch.cat(values)
    for piece in hashed.split(_AT_ONCE):
        mix64_(piece).remainder_(HASHED_INTO)
    parts = zip(kept.items(), hashed.split([len(one) for one in values]), strict=True)
    return {name: _with_values(rows, part) for (name, rows), part in parts}


def _with_values(rows: Jagged | WindowedRows, values: Tensor) -> Jagged:
    if isinstance(rows, Jagged):
        return Jagged.from_offsets(values, rows.offsets, rows.lengths_B)
    kept_B = rows.lengths_B.clamp(max=KEPT)
    return WindowedRows(values, rows.starts_B + rows.lengths_B - kept_B, kept_B).to_jagged()


def _last(rows: Jagged) -> Jagged:
    """The last ids of each row."""
    if not len(rows) or int(rows.lengths_B.max()) <= KEPT:
        return rows
    kept_B = rows.lengths_B.clamp(max=KEPT)
    return Jagged(rows.values_N.index_select(0, slice_positions(rows.offsets[1:] - kept_B, kept_B)), kept_B)
