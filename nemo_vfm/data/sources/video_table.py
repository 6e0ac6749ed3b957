# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads training batches from a CSV, JSON Lines or Parquet file that names videos and their captions."""

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.batching.bucket import Buckets
from nemo_vfm.data.loader.global_batches import Feed
from nemo_vfm.data.shards.sample_reader import Samples
from nemo_vfm.data.sources.file_set import Captioned, FileSet
from nemo_vfm.data.video.decode import Decoder
from nemo_vfm.data.video.media_info import facts_of_files

_MAX_LINE_BYTES = 1 << 20


@needs_packages("torchcodec", where={"decoder": "torchcodec"})
class VideoTable(Feed):
    """Batches straight from the videos and pictures that a table names, decoded and cut to buckets on the way.

    The same guarantees as `ShardData`. A file may be named more than once, with other captions; a row that is there
    twice counts once.

    Args:
        path: the table; its ending says whether it is .csv, .jsonl or .parquet.
        buckets: the shapes.
        batch_size: samples of a global batch, over all ranks; a bucket's own batch_size goes before it.
        video: name of the column with the files' paths.
        caption: name of the column with the captions; None trains without.
        root: folder that paths are relative to and may not leave; None is the table's own.
        num_workers: processes that read ahead on each rank; 0 reads in the training process.
        val_fraction: share of the files that is held out, at least 0 and below 1; by their names.
        shuffle: False gives the rows in their order.
        max_bad_in_a_row: so many files in a row that cannot be read stop the run.
        index: file where sizes, lengths and rates are kept from one start to the next; None looks at all files at
            every start.
        max_ahead_gb: what batches read ahead may fill on each rank at most, in GB (10^9 bytes).
        max_memory_share: what the workers of a machine may grow by together, of its memory; a rank's are replaced
            between batches when one of them grows by more than its part. None lets them grow.
        decoder: who reads videos: PyAV, decord or torchcodec; `auto` is PyAV. What another cannot read, PyAV does.
    """

    def __init__(
        self,
        *,
        path: Path,
        buckets: Buckets,
        batch_size: int,
        video: str = "video",
        caption: str | None = "caption",
        root: Path | None = None,
        num_workers: int = 0,
        val_fraction: float = 0.0,
        shuffle: bool = True,
        max_bad_in_a_row: int = 16,
        index: WritePath | None = None,
        max_ahead_gb: float = 4.0,
        max_memory_share: float | None = 0.5,
        decoder: Decoder = "auto",
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            num_workers=num_workers,
            val_fraction=val_fraction,
            buckets=buckets,
            shuffle=shuffle,
            max_bad_in_a_row=max_bad_in_a_row,
            max_ahead_gb=max_ahead_gb,
            max_memory_share=max_memory_share,
            decoder=decoder,
        )
        if path.suffix.lower() not in _READERS:
            raise ValueError(f"{path.name} is not a supported table: use one of {', '.join(_READERS)}")
        self.path = local(path, "a table of videos")
        self.root = self.path.parent if root is None else local(root, "the folder of a table's videos")
        self.index = None if index is None else local(index, "the index of a table of videos")
        self.video, self.caption = video, caption

    def _samples(self) -> Samples:
        files = list(self._rows())
        if not files:
            raise UserError(f"{self.path} names no file below {self.root}; are its paths relative to root?")
        return FileSet(self.path, files, facts_of_files({file.name: file.path for file in files}, self.index))

    def _rows(self) -> Iterator[Captioned]:
        """One a row; rows that say nothing new or name files elsewhere are counted and left out."""
        inside, seen, left_out = self.root.resolve(), set(), {"point outside root": 0, "were there before": 0}
        for number, row in enumerate(rows_of(self.path, [self.video, *([self.caption] if self.caption else [])]), 1):
            text, caption = row[self.video], row[self.caption] if self.caption else ""
            if not isinstance(text, str) or not text or "\x00" in text:
                raise DataError(f"row {number} of {self.path} names no file under {self.video!r}, but {text!r}")
            path, text_bytes = self._path(number, inside, text), self._said(number, caption)
            if not path.is_relative_to(inside):
                left_out["point outside root"] += 1
            elif (path, text_bytes) in seen:
                left_out["were there before"] += 1
            else:
                seen.add((path, text_bytes))
                yield Captioned(path.relative_to(inside).as_posix(), path, text_bytes)
        for reason, count in left_out.items():
            if count:
                warn(f"{count} rows of {self.path} are left out: they {reason}")

    def _path(self, number: int, inside: Path, text: str) -> Path:
        try:
            path = (inside / text).resolve()
            path.as_posix().encode()
        except (OSError, ValueError, RuntimeError) as error:  # half a character of JSON, links in a circle
            raise DataError(f"row {number} of {self.path} names {text[:200]!a}, not a path: {error}") from error
        return path

    def _said(self, number: int, caption: Json) -> str:
        """The caption; half a character, which JSON can hold, would break whoever writes or hashes it."""
        text_bytes = str(caption or "").strip().encode(errors="replace")
        if len(text_bytes) > _MAX_LINE_BYTES:
            raise DataError(f"the caption in row {number} of {self.path} has more than {_MAX_LINE_BYTES:,} bytes")
        return text_bytes.decode()


def rows_of(path: Path, columns: list[str]) -> Iterator[Mapping[str, Json]]:
    """The named columns, row by row.

    Raises:
        UserError: there is no such file or column.
        DataError: it is damaged.
    """
    if not path.is_file():
        raise UserError(f"there is no table {path}")
    try:
        for row in _READERS[path.suffix.lower()](path, columns):
            if missing := [name for name in columns if name not in row]:
                raise UserError(f"{path} has no column {missing[0]}; it has {', '.join(map(str, row))}")
            yield row
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        if isinstance(error, UserError):
            raise
        raise DataError(f"{path} cannot be read: {error}") from error


def _csv(path: Path, columns: list[str]) -> Iterator[Mapping[str, Json]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv.DictReader(file, strict=True)


def _jsonl(path: Path, columns: list[str]) -> Iterator[Mapping[str, Json]]:
    with path.open("rb") as file:
        while line := file.readline(_MAX_LINE_BYTES + 1):
            if len(line) > _MAX_LINE_BYTES:
                raise ValueError(f"a line has more than {_MAX_LINE_BYTES:,} bytes")
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"a line must be an object, got {type(row).__name__}")
                yield row


def _parquet(path: Path, columns: list[str]) -> Iterator[Mapping[str, Json]]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if missing := [name for name in columns if name not in names]:
            raise UserError(f"{path} has no column {missing[0]}; it has {', '.join(names)}")
        for batch in file.iter_batches(columns=columns):
            yield from batch.to_pylist()


_READERS = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
