"""Gives the ids of a log the rows that they have in another log, and new ids rows behind those."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.storage.uri import local
from nemo_vfm.recsys.log_import.frequent_ids import Vocabulary, counts_of_features, read_vocabulary, top_ids
from nemo_vfm.sparse.log_chunk import LogChunk

VOCABULARY = "vocabulary.safetensors"


class KnownIds:
    """The rows of another import's `FrequentIds` or `KnownIds`, so that one model reads both tables.

    Args:
        vocabulary: the run folder of that import, or its `vocabulary.safetensors`.
        grow: counts the ids of this log first, and gives new ones rows behind the old ones, the most frequent first;
            else they share row 0 with the rare ones. The vocabulary of this run is then that of the next one.
        num_rows: of a table at most, old rows and row 0 included; None is no limit.
        num_rows_of: of the tables of these features, in place of `num_rows`.
        min_count: occurrences of a new id in this log.
        counted_ids: see `FrequentIds`.
    """

    def __init__(
        self, *, vocabulary: Path, grow: bool = False, num_rows: int | None = None,
        num_rows_of: Mapping[str, int] | None = None, min_count: int = 2, counted_ids: int = 1_000_000,
    ) -> None:  # fmt: skip
        self.path, self.grow, self.num_rows = local(vocabulary, "the vocabulary"), grow, num_rows
        self.num_rows_of, self.min_count, self.counted_ids = dict(num_rows_of or {}), min_count, counted_ids
        if min(min_count, counted_ids, *self.num_rows_of.values(), 1 if num_rows is None else num_rows) < 1:
            raise ValueError(
                f"num_rows ({num_rows}), those of num_rows_of ({self.num_rows_of}), min_count ({min_count}) and "
                f"counted_ids ({counted_ids}) must be at least 1"
            )

    def file(self) -> Path:
        """Where the vocabulary is."""
        found = self.path / VOCABULARY if self.path.is_dir() else self.path
        if not found.is_file():
            raise UserError(f"there is no {found}; give the run folder of an ImportLog with FrequentIds or KnownIds")
        return found

    def vocabulary(self, chunks: Iterable[LogChunk]) -> Vocabulary:
        """The old one, or one that has grown, for which all samples are read."""
        known = read_vocabulary(self.file())
        if not self.grow:
            return known
        grown = dict(known.ids)
        for name, found in counts_of_features(chunks, self.counted_ids).items():
            old = known.ids.get(name, np.zeros(0, np.int64))
            ids = top_ids(name, found, self.min_count)
            most, new = self.num_rows_of.get(name, self.num_rows), ids[~np.isin(ids, old)]
            new = new if most is None else new[: max(0, most - 1 - len(old))]
            info(f"{name}: {len(old):,} known ids, followed by {len(new):,} new ones")
            grown[name] = np.append(old, new)
        return Vocabulary(grown)
