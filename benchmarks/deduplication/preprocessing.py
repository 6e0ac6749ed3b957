# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Measures CPU seconds from the file to transformed batches, and the bytes of these batches.

The transforms are those that ranking models use most (DPP, 2108.09373): ids are hashed into their table and the last
ones of a row are kept. One side transforms a row a sample, the other one its unique rows.
"""

import time
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.jagged_select import slice_positions
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_fingerprint import mix64_

KEPT, HASHED_INTO = 40, 1 << 20  # ids of a history of 48; rows of a table
_SMALL = 1 << 15


def plain_batches(table: FeatureTable, batch_size: int) -> Iterator[FeatureBatch]:
    """A row a sample of every feature."""
    for begin in range(0, table.num_rows, batch_size):
        chunk = table.read(begin, min(begin + batch_size, table.num_rows))
        yield as_batch(chunk, _transformed(chunk.features), {})


def unique_batches(table: FeatureTable, batch_size: int) -> Iterator[FeatureBatch]:
    """Groups as they are stored."""
    for begin in range(0, table.num_rows, batch_size):
        chunk, groups = table.read_deduplicated(begin, min(begin + batch_size, table.num_rows))
        done = {name: DedupedGroup(_transformed(one.features), one.inverse_B) for name, one in groups.items()}
        yield as_batch(chunk, _transformed(chunk.features), done)


def as_batch(
    chunk: LogChunk, features: Mapping[str, Jagged], groups: Mapping[str, DedupedGroup], index: int = 0
) -> FeatureBatch:
    """Of a chunk's labels and dense numbers, and these features."""
    return FeatureBatch(
        index, chunk.ids_B, torch.ones(len(chunk)), chunk.dense_BF, chunk.labels, features, groups
    )  # fmt: skip


def measured(plain: FeatureTable, unique: FeatureTable, batch_size: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of both sides by round, and bytes of all batches."""
    found: dict[str, list[float]] = {"plain_s": [], "unique_s": [], "plain_bytes": [], "unique_bytes": []}
    for _ in range(rounds):
        for name, batches in (("plain", plain_batches(_reopened(plain), batch_size)),
                              ("unique", unique_batches(_reopened(unique), batch_size))):  # fmt: skip
            begin, size = time.process_time(), 0
            for batch in batches:
                size += batch_bytes(batch)
            found[f"{name}_s"].append(time.process_time() - begin)
            found[f"{name}_bytes"].append(size)
    return found


def batch_bytes(batch: FeatureBatch) -> int:
    """Of all tensors that would be sent to a device."""
    jagged = [*batch.features.values(), *(rows for group in batch.groups.values() for rows in group.features.values())]
    tensors = [batch.ids_B, batch.weight_B, batch.dense_BF, *batch.labels.values()]
    tensors += [tensor for rows in jagged for tensor in (rows.values_N, rows.lengths_B)]
    return sum(tensor.nbytes for tensor in [*tensors, *(group.inverse_B for group in batch.groups.values())])


def _reopened(table: FeatureTable) -> FeatureTable:
    """With nothing decoded."""
    return FeatureTable(table.folder)


def _transformed(features: Mapping[str, Jagged]) -> dict[str, Jagged]:
    """Small features are hashed together: a call costs more than their values."""
    kept = {name: _last(rows) for name, rows in features.items()}
    small = {name: rows for name, rows in kept.items() if len(rows.values_N) < _SMALL}
    hashed = {name: _hashed(rows.values_N.clone()) for name, rows in kept.items() if name not in small}
    if small:
        values = _hashed(torch.cat([rows.values_N for rows in small.values()]))
        hashed |= zip(small, values.split([len(rows.values_N) for rows in small.values()]), strict=True)
    return {name: Jagged(hashed[name], rows.lengths_B) for name, rows in kept.items()}


def _last(rows: Jagged) -> Jagged:
    """The last ids of each row."""
    if int(rows.lengths_B.max()) <= KEPT:
        return rows
    kept_B = rows.lengths_B.clamp(max=KEPT)
    begins_B: Tensor = rows.offsets[1:] - kept_B
    return Jagged(rows.values_N[slice_positions(begins_B, kept_B)], kept_B)


def _hashed(values_N: Tensor) -> Tensor:
    """In place."""
    return mix64_(values_N).remainder_(HASHED_INTO)
