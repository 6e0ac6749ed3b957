"""Brings the samples of a log together by session and in order of time, in bounded memory, by way of the disk.

Shape letters: B samples.
"""

import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.feature_table.chunk_tensors import chunk_bytes
from nemo_vfm.recsys.feature_table.spill_runs import (
    NUM_BUCKETS,
    bucket_bytes,
    buckets,
    read_buckets,
    read_state,
    write_run,
)
from nemo_vfm.recsys.feature_table.table_manifest import TableManifest
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.sparse.log_chunk import LogChunk

_COPIES = 4  # of what is spilled or sorted at once: collected or read, put together, in order, and as bytes of a file
_SLICE_ROWS = 1 << 15


class SessionSort:
    """An external bucket sort by (hash of session, session, time, number of sample).

    The order does not depend on the memory, nor on how the samples are cut into chunks.

    Args:
        folder: for files, as large as the samples; they stay until `remove`.
        memory_bytes: that the samples may take in memory, copies included.
    """

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self._folder, self._bytes_at_once = folder, memory_bytes // _COPIES

    def state(self) -> Json:
        """What came with the last sample that is safe on disk, or None. Half-written files are deleted."""
        for path in self._folder.glob(".*.tmp*"):
            path.unlink()
        runs = self._runs()
        return read_state(runs[-1]) if runs else None

    def fill(self, chunks: Iterable[tuple[LogChunk, Json]]) -> None:
        """Take samples, each chunk with a state that says how to go on after it."""
        pending: list[LogChunk] = []
        state: Json = None
        for chunk, state in chunks:
            pending.append(chunk)
            if sum(map(chunk_bytes, pending)) >= self._bytes_at_once:
                self._write(pending, state)
                pending = []
        if pending:
            self._write(pending, state)

    def sorted_chunks(self) -> Iterator[LogChunk]:
        """All samples; those of a session are in one chunk.

        Raises:
            UserError: the sessions of one bucket do not fit into the memory.
        """
        runs = self._runs()
        for begin, end in self._ranges(runs) if runs else ():
            chunk = LogChunk.cat([read_buckets(path, begin, end) for path in runs])
            chunk = chunk.select(torch.from_numpy(_order(chunk)))
            yield from _whole_sessions(chunk)

    def remove(self) -> None:
        """Delete the files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _runs(self) -> list[Path]:
        return sorted(self._folder.glob("run-*.safetensors"))

    def _write(self, pending: list[LogChunk], state: Json) -> None:
        write_run(self._folder / f"run-{len(self._runs()):06d}.safetensors", LogChunk.cat(pending), state)

    def _ranges(self, runs: list[Path]) -> list[tuple[int, int]]:
        """Buckets that are read at once."""
        bytes_K = np.zeros(NUM_BUCKETS, np.int64)
        for path in runs:
            bytes_K += bucket_bytes(path)
        most, largest = self._bytes_at_once, int(bytes_K.max(initial=0))
        if largest > most:
            raise UserError(
                f"the sessions of one bucket take {largest:,} bytes, but memory_bytes allows {most:,} at a "
                f"time; set memory_bytes to at least {largest * _COPIES:,}"
            )
        found, begin = [], 0
        for bucket in range(1, NUM_BUCKETS + 1):
            if bucket == NUM_BUCKETS or bytes_K[begin : bucket + 1].sum() > most:
                found.append((begin, bucket))
                begin = bucket
        return found


def write_clustered(
    chunks: Iterable[LogChunk],
    folder: Path,
    schema: TableSchema,
    memory_bytes: int,
    *,
    spill: Path,
    rows_per_part: int = 1 << 20,
    rows_per_group: int = 1 << 16,
) -> TableManifest:
    """Write a feature table of samples in any order, clustered by session and ordered by time.

    Killed and called again with the same chunks, it goes on and comes to the same bytes.

    Args:
        chunks: the samples.
        folder: of the table.
        memory_bytes: that the samples may take in memory; a row group of the table comes on top.
        spill: a folder for files, as large as the samples; it is deleted at the end.
        rows_per_part, rows_per_group: see `FeatureTableWriter`.
    """
    sort = SessionSort(spill, memory_bytes)
    done = sort.state() or 0
    assert isinstance(done, int)
    sort.fill((chunk, number) for number, chunk in islice(enumerate(chunks, 1), done, None))
    writer = FeatureTableWriter(folder, schema, rows_per_part=rows_per_part, rows_per_group=rows_per_group)
    for chunk in without_first(sort.sorted_chunks(), writer.resume()):
        writer.add(chunk)
    manifest = writer.finish()
    sort.remove()
    return manifest


def without_first(chunks: Iterable[LogChunk], num_rows: int) -> Iterator[LogChunk]:
    """All samples but the first `num_rows`."""
    for chunk in chunks:
        if len(chunk) > num_rows:
            yield chunk.rows(num_rows, len(chunk))
        num_rows = max(0, num_rows - len(chunk))


def _order(chunk: LogChunk) -> NDArray[np.int64]:
    keys = (chunk.ids_B, chunk.time_B, chunk.session_B)
    return np.lexsort((*(key.numpy() for key in keys), buckets(chunk.session_B)))


def _whole_sessions(chunk: LogChunk) -> Iterator[LogChunk]:
    """Slices of a chunk, cut between sessions."""
    ends = np.append(np.flatnonzero(np.diff(chunk.session_B.numpy())) + 1, len(chunk))
    begin = 0
    while begin < len(chunk):
        end = int(ends[min(int(np.searchsorted(ends, begin + _SLICE_ROWS)), len(ends) - 1)])
        yield chunk.rows(begin, end)
        begin = end
