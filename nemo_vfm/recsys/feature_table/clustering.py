"""Brings the samples of a log together by session and in order of time, in bounded memory, by way of the disk.

A run is a file with the samples of many chunks, ordered by bucket. It is whole or absent, and holds besides what its
writer wants to know after a kill. Shape letters: B samples, K buckets.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import atomic_path
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.feature_table.table_manifest import TableManifest
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_fingerprint import mix64_

_COPIES = 4  # of what is spilled or sorted at once: collected or read, put together, in order, and as bytes of a file
_SLICE_ROWS = 1 << 15
#: Buckets of sessions; as many neighbours are read at once as fit into memory.
NUM_BUCKETS = 1 << 12
_ROW_BORDERS, _VALUE_BORDERS, _STATE = "borders", "borders/", "state"


@dataclass(frozen=True, slots=True)
class SessionSort:
    """An external bucket sort by (hash of session, session, time, number of sample).

    The order does not depend on the memory, nor on how the samples are cut into chunks.
    """

    _folder: Path  #: for files, as large as the samples; they stay until `remove`
    _memory_bytes: int  #: that the samples may take in memory, copies included

    def state(self) -> Json:
        """What came with the last sample that is safe on disk, or None. Half-written files are deleted."""
        for path in self._folder.glob(".*.tmp*"):
            path.unlink()
        runs = self._runs()
        if not runs:
            return None
        with _open_spill(runs[-1]) as file:
            found: Json = json.loads(file.metadata()[_STATE])
            return found

    def fill(self, chunks: Iterable[tuple[LogChunk, Json]]) -> None:
        """Take samples, each chunk with a state that says how to go on after it."""
        pending: list[LogChunk] = []
        state: Json = None
        for chunk, state in chunks:
            pending.append(chunk)
            if sum(map(num_bytes, pending)) >= self._memory_bytes // _COPIES:
                self._write(pending, state)
                pending = []
        if pending:
            self._write(pending, state)

    def sorted_chunks(self) -> Iterator[LogChunk]:
        """All samples; those of a session are in one chunk."""
        runs = self._runs()
        for begin, end in self._ranges(runs) if runs else ():
            chunk = LogChunk.cat([_read_buckets(path, begin, end) for path in runs])
            keys = (chunk.ids_B, chunk.time_B, chunk.session_B)
            chunk = chunk.select(
                torch.from_numpy(np.lexsort((*(key.numpy() for key in keys), buckets(chunk.session_B))))
            )
            # Slices that are cut between sessions.
            ends, first = np.append(np.flatnonzero(np.diff(chunk.session_B.numpy())) + 1, len(chunk)), 0
            while first < len(chunk):
                last = int(ends[min(int(np.searchsorted(ends, first + _SLICE_ROWS)), len(ends) - 1)])
                yield chunk.rows(first, last)
                first = last

    def remove(self) -> None:
        """Delete the files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _runs(self) -> list[Path]:
        return sorted(self._folder.glob("run-*.safetensors"))

    def _write(self, pending: list[LogChunk], state: Json) -> None:
        """Write samples, ordered by bucket, and a state beside them."""
        from safetensors.torch import save_file

        chunk = LogChunk.cat(pending)
        bucket_B = buckets(chunk.session_B)
        order_B = np.argsort(bucket_B, kind="stable")
        borders = torch.from_numpy(np.searchsorted(bucket_B[order_B], np.arange(NUM_BUCKETS + 1)))
        chunk = chunk.select(torch.from_numpy(order_B))
        tensors = {
            name: column.to(torch.int32 if name.startswith("lengths/") else column.dtype).contiguous()
            for name, column in chunk.columns().items()
        }
        tensors |= {_VALUE_BORDERS + name: rows.offsets[borders] for name, rows in chunk.features.items()}
        with atomic_path(self._folder / f"run-{len(self._runs()):06d}.safetensors") as temporary:
            save_file({**tensors, _ROW_BORDERS: borders}, temporary, {_STATE: json.dumps(state)})

    def _ranges(self, runs: list[Path]) -> list[tuple[int, int]]:
        """Buckets that are read at once."""
        bytes_K = np.zeros(NUM_BUCKETS, np.int64)
        for path in runs:
            with _open_spill(path) as file:
                names, features = _names(file)
                # Of the columns, and of the lengths of features; of an id, and a weight if there is one.
                bytes_K += np.diff(file.get_tensor(_ROW_BORDERS).numpy()) * 8 * len(names)
                for name in features:
                    bytes_K += np.diff(file.get_tensor(_VALUE_BORDERS + name).numpy()) * 12
        most, largest = self._memory_bytes // _COPIES, int(bytes_K.max(initial=0))
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
        memory_bytes: that the samples may take in memory; a row group of the table comes on top.
        spill: a folder for files, as large as the samples; it is deleted at the end.
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


def buckets(session_B: Tensor) -> NDArray[np.uint16]:
    """The bucket of each sample's session: (B,)."""
    return (mix64_(session_B.clone()).numpy() & (NUM_BUCKETS - 1)).astype(np.uint16)


def _read_buckets(path: Path, begin: int, end: int) -> LogChunk:
    """The samples of the buckets begin..end of a run."""
    with _open_spill(path) as file:
        names, features = _names(file)
        borders = [_ROW_BORDERS, *(_VALUE_BORDERS + name for name in features)]
        spans = {name: file.get_tensor(name)[[begin, end]].tolist() for name in borders}
        columns = {}
        for name in names:
            kind, _, of = name.partition("/")
            first, last = spans[_VALUE_BORDERS + of if kind in ("values", "weights") else _ROW_BORDERS]
            columns[name] = file.get_slice(name)[first:last]
        return LogChunk.of_columns(columns)


def _names(file: Any) -> tuple[list[str], list[str]]:
    """Of the tensors of a chunk, and of its features."""
    names = file.keys()
    features = [name.removeprefix(_VALUE_BORDERS) for name in names if name.startswith(_VALUE_BORDERS)]
    return [name for name in names if not name.startswith(_ROW_BORDERS)], features


@contextmanager
def _open_spill(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, KeyError, SafetensorError) as error:  # a key: another version wrote it
        raise DataError(f"{path} cannot be read: {error}. Delete the folder {path.parent} and run again.") from error


def num_bytes(chunk: LogChunk) -> int:
    """Of all columns."""
    return sum(column.nbytes for column in chunk.columns().values())
