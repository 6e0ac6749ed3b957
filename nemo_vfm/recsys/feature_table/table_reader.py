"""Reads samples of a feature table, a row group at a time: with all rows, or with the rows that repeat once.

Shape letter: B samples.
"""

import bisect
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.recsys.feature_table.stored_rows import StoredRows, read_numbers, read_row_group
from nemo_vfm.recsys.feature_table.table_manifest import NAME, Part, TableManifest, read_manifest, require_files
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_deduplication import row_changes
from nemo_vfm.sparse.windowed_rows import WindowedRows


class FeatureTable:
    """A table on disk, which is opened when something of it is asked for. Threads may share it.

    Args:
        folder: that `FeatureTableWriter` wrote.
        cached_row_groups: how many decoded row groups are kept.
    """

    def __init__(self, folder: Path, *, cached_row_groups: int = 2) -> None:
        self.folder, self._most = folder, cached_row_groups
        self._cache: OrderedDict[tuple[int, tuple[str, ...]], StoredRows] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def manifest(self) -> TableManifest:
        """What the table says of itself; that its files are there and of the right size has been checked.

        Raises:
            UserError: the folder is no table, or not finished.
            DataError: the manifest or a file is damaged.
        """
        manifest = read_manifest(self.folder)
        require_files(self.folder, manifest, hashes=False)
        return manifest

    @property
    def schema(self) -> TableSchema:
        """Its columns."""
        return self.manifest.schema

    @property
    def num_rows(self) -> int:
        """Samples."""
        return self.manifest.num_rows

    @cached_property
    def row_groups(self) -> tuple[int, ...]:
        """The number of the first sample of each row group, and at last `num_rows`."""
        sizes = itertools.chain.from_iterable(part.row_groups for part in self.manifest.parts)
        return tuple(itertools.accumulate(sizes, initial=0))

    @cached_property
    def digest(self) -> str:
        """The sha256 of the manifest, and so of all there is."""
        return sha256_file(self.folder / NAME)

    def numbers(self, row_group: int, column: Literal["session", "time"]) -> Tensor:
        """The session or time of each sample of a row group; nothing else is read.

        Raises:
            DataError: a file is damaged.
        """
        part, number = self._place(row_group)
        return read_numbers(self.folder, part, number, column)

    def verify(self) -> None:
        """Read all files and compare them with the hashes in the manifest.

        Raises:
            DataError: one differs.
        """
        require_files(self.folder, self.manifest, hashes=True)

    def log_chunks(self) -> Iterator[LogChunk]:
        """See `LogSource`; a chunk is a row group."""
        for begin, end in itertools.pairwise(self.row_groups):
            yield self.read(begin, end)

    def read(self, begin: int, end: int, features: Sequence[str] | None = None) -> LogChunk:
        """The samples begin..end, with a row a sample of every feature.

        Args:
            features: which to read; None reads all.

        Raises:
            ValueError: there are no such samples or features.
            DataError: a file is damaged.
        """
        names, pieces = self._names(features), []
        for stored, first, last in self._pieces(begin, end, names):
            chunk = stored.samples.rows(first, last)
            expanded = {n: r for group in stored.groups.values() for n, r in group.rows(first, last).expand().items()}
            every = {**chunk.features, **expanded}
            pieces.append(replace(chunk, features={name: every[name] for name in names}))
        return LogChunk.cat(pieces)

    def read_deduplicated(
        self, begin: int, end: int, features: Sequence[str] | None = None
    ) -> tuple[LogChunk, dict[str, DedupedGroup]]:
        """The samples begin..end without the features of groups, and the groups: what `deduplicated(clustered=True)`
        would find, but taken from the stored runs.

        Args and raises: see `read`.
        """
        pieces = list(self._pieces(begin, end, self._names(features)))
        chunk = LogChunk.cat([stored.samples.rows(first, last) for stored, first, last in pieces])
        groups = {}
        for group in pieces[0][0].groups:
            # Where a row group begins with the row that the one before ends with, it stands once.
            parts = [stored.groups[group].rows(first, last) for stored, first, last in pieces]
            kept, inverses, num_unique = [parts[0].features], [parts[0].inverse_B], parts[0].num_unique
            for before, part in itertools.pairwise(parts):
                last = before.num_unique - 1
                ends = [Jagged.cat([before.features[name].rows(last, last + 1), rows.rows(0, 1)])
                        for name, rows in part.features.items()]  # fmt: skip
                again = not bool(row_changes(ends)[1])
                inverses.append(part.inverse_B + (num_unique - again))
                kept.append({name: rows.rows(int(again), len(rows)) for name, rows in part.features.items()})
                num_unique += part.num_unique - again
            joined = {name: Jagged.cat([one[name] for one in kept]) for name in parts[0].features}
            groups[group] = DedupedGroup(joined, torch.cat(inverses))
        return chunk, groups

    def windows(self, row_group: int, features: Sequence[str] | None = None) -> Mapping[str, WindowedRows]:
        """The unique rows of the windows of a row group as they are stored: row u is that of the group's row u.

        Args and raises: see `read`.
        """
        return self.load_row_group(row_group, self._names(features)).windows

    def load_row_group(self, row_group: int, features: Sequence[str] | None = None) -> StoredRows:
        """A row group as it is stored, decoded.

        Args and raises: see `read`.
        """
        key = row_group, self._names(features)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        found = read_row_group(self.folder, self.manifest, *self._place(row_group), key[1])
        with self._lock:
            self._cache[key] = found
            while len(self._cache) > self._most:
                self._cache.popitem(last=False)
        return found

    def _place(self, row_group: int) -> tuple[Part, int]:
        """The part of a row group, and its number in there."""
        number = row_group
        for part in self.manifest.parts:
            if 0 <= number < len(part.row_groups):
                return part, number
            number -= len(part.row_groups)
        raise ValueError(f"there is no row group {row_group} in {self.folder}, which has {len(self.row_groups) - 1}")

    def _pieces(self, begin: int, end: int, names: tuple[str, ...]) -> Iterator[tuple[StoredRows, int, int]]:
        if not 0 <= begin < end <= self.num_rows:
            raise ValueError(f"there are no samples {begin:,} to {end:,} in {self.folder}, which has {self.num_rows:,}")
        row_group = bisect.bisect_right(self.row_groups, begin) - 1
        while (first := self.row_groups[row_group]) < end:
            last = self.row_groups[row_group + 1]
            yield self.load_row_group(row_group, names), max(begin - first, 0), min(end, last) - first
            row_group += 1
            if row_group == len(self.row_groups) - 1:
                return

    def _names(self, features: Sequence[str] | None) -> tuple[str, ...]:
        known = self.schema.features
        if features is not None and (unknown := [name for name in features if name not in known]):
            raise ValueError(f"{self.folder} has no feature {unknown[0]}; it has {', '.join(known)}")
        return tuple(known) if features is None else tuple(features)
