# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads which log it is, how many samples it has and when they were logged, before it is measured.

Shape letters: B samples, W time windows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor

from nemo_vfm.core.errors import NothingKept
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.sparse.log_chunk import LogChunk, LogSource


@dataclass(frozen=True)
class LogOutline:
    """What is known of a log without its features.

    Args:
        data_hash: tells this log from others.
        samples: how many it has.
        first_time: the earliest, in the source's unit.
        last_time: the latest.
    """

    data_hash: str
    samples: int
    first_time: int
    last_time: int

    def window_edges(self, windows: int) -> list[int]:
        """Where windows of equal duration begin, and where the last one ends: W + 1 times."""
        span = self.last_time - self.first_time + 1
        return [self.first_time + span * window // windows for window in range(windows + 1)]


def outline(source: LogSource) -> LogOutline:
    """Read the sample numbers, sessions and times of a log once.

    The hash is one of these three columns and of the names of the others.

    Raises:
        NothingKept: it has no samples.
    """
    return _outline(source.log_chunks(), "")


def windows_of(time_B: Tensor, edges: list[int]) -> Tensor:
    """The window of each sample: int64, B."""
    return torch.bucketize(time_B, torch.tensor(edges[1:-1], dtype=torch.int64), right=True)


def data_hash(source: LogSource) -> str:
    """Tells a log from others; see `outline`."""
    return outline(source).data_hash


def _outline(chunks: Iterable[LogChunk], known_hash: str) -> LogOutline:
    hashes, samples, times, names = [sha256(), sha256(), sha256()], 0, list[int](), ""
    for chunk in chunks:
        for column, hashed in zip((chunk.ids_B, chunk.session_B, chunk.time_B), hashes, strict=True):
            hashed.update(column.contiguous().numpy().data)
        if len(chunk):
            samples += len(chunk)
            times += [int(chunk.time_B.min()), int(chunk.time_B.max())]
            times = [min(times), max(times)]
            names = repr([sorted(one) for one in (chunk.dense, chunk.labels, chunk.features)])
    if not samples:
        raise NothingKept("the log has no samples, so there is nothing to profile; check where it is read from.")
    found = sha256_text(" ".join([names, *(hashed.hexdigest() for hashed in hashes)]))
    return LogOutline(known_hash or found, samples, *times)
