"""Makes small logs in memory, whose features repeat inside of sessions, and drift."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk


@dataclass(frozen=True)
class LogInMemory:
    """A log source of one chunk, given in pieces of `piece` samples."""

    chunk: LogChunk
    piece: int = 4000

    def log_chunks(self) -> Iterator[LogChunk]:
        for begin in range(0, len(self.chunk), self.piece):
            whole = self.piece >= len(self.chunk)  # which leaves a damaged one as it is
            yield self.chunk if whole else self.chunk.rows(begin, min(begin + self.piece, len(self.chunk)))


def session_log(sessions: int, seed: int, *, mean: float = 6.0, ids: int = 400, drifting: bool = True) -> LogChunk:
    """Geometric sessions; `user` and `history` change together, `item` each time, `rare` is missing mostly.

    In the later half of the time, ids of `item` are half of them others, where `drifting`.
    """
    numbers = torch.Generator().manual_seed(seed)
    sizes = torch.empty(sessions).geometric_(1 / mean, generator=numbers).long()
    session_B = (torch.randperm(sessions, generator=numbers) * 7919 - 3).repeat_interleave(sizes)
    begins_B = torch.diff(session_B, prepend=session_B[:1] - 1) != 0
    changes_B = begins_B | (torch.rand(len(session_B), generator=numbers) > 0.85)
    row_B = changes_B.cumsum(0) - 1
    items = _skewed(len(session_B), ids, 3, numbers, shortest=1)
    late_B = torch.arange(len(session_B)) > len(session_B) // 2
    moved_N = (items.values_N + ids // 2 * late_B.repeat_interleave(items.lengths_B) * drifting) % ids
    changed = int(changes_B.sum())
    features = {
        "user": _skewed(changed, ids, 2, numbers, shortest=1).select(row_B),
        "history": _skewed(changed, ids, 9, numbers).select(row_B),
        "item": Jagged(moved_N, items.lengths_B),
        "rare": _power_law((torch.rand(len(session_B), generator=numbers) < 0.2).long(), ids, numbers),
    }
    number_B = torch.arange(len(session_B))
    return LogChunk(
        number_B, session_B, number_B // 3 + 10**9, labels={"click": (number_B % 2).float()}, features=features
    )


def _skewed(rows: int, ids: int, longest: int, numbers: torch.Generator, shortest: int = 0) -> Jagged:
    return _power_law(torch.randint(shortest, longest + 1, (rows,), generator=numbers), ids, numbers)


def _power_law(lengths_B: Tensor, ids: int, numbers: torch.Generator) -> Jagged:
    drawn_N = torch.rand(int(lengths_B.sum()), generator=numbers, dtype=torch.float64) ** 3 * ids
    return Jagged(drawn_N.long(), lengths_B)
