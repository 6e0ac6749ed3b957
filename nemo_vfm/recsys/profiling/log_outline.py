"""Reads which log it is, how many samples it has and when they were logged, before it is measured.

Shape letters: B samples, W time windows.
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from nemo_vfm.core.errors import NothingKept
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.sparse.log_chunk import LogSource


@dataclass(frozen=True)
class LogOutline:
    """What is known of a log without its features."""

    data_hash: str  #: tells this log from others
    samples: int  #: how many it has
    first_time: int  #: the earliest, in the source's unit
    last_time: int  #: the latest

    def window_edges(self, windows: int) -> list[int]:
        """Where windows of equal duration begin, and where the last one ends: W + 1 times."""
        span = self.last_time - self.first_time + 1
        return [self.first_time + span * window // windows for window in range(windows + 1)]


def outline(source: LogSource) -> LogOutline:
    """Read a log once; of a feature table only sample numbers, sessions and times.

    The hash of a feature table is that of its manifest. That of another log is of all columns, and does not depend on
    how the log is cut into chunks.
    """
    stored, samples, times = isinstance(source, FeatureTable), 0, list[int]()
    hashes: defaultdict[str, hashlib._Hash] = defaultdict(hashlib.sha256)
    chunks = source.log_chunks()
    if isinstance(source, FeatureTable):
        chunks = (source.read(begin, end, features=()) for begin, end in pairwise(source.row_groups))
    for chunk in filter(len, chunks):
        samples += len(chunk)
        times = [min([*times, int(chunk.time_B.min())]), max([*times, int(chunk.time_B.max())])]
        for name, column in chunk.columns().items() if not stored else ():
            if name != "weight":
                hashes[name].update(column.contiguous().numpy().data)
    if not samples:
        raise NothingKept("the log has no samples, so there is nothing to profile; check its path.")
    found = sha256_text("\n".join(f"{name} {hashed.hexdigest()}" for name, hashed in sorted(hashes.items())))
    return LogOutline(source.digest if isinstance(source, FeatureTable) else found, samples, *times)


def data_hash(source: LogSource) -> str:
    """Tells a log from others; see `outline`."""
    return source.digest if isinstance(source, FeatureTable) else outline(source).data_hash
