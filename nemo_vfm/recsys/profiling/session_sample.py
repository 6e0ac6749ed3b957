"""Takes whole sessions of a log at random, by a hash of the session, and keeps a bounded number of them.

Shape letter: B samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.log_chunk import LogChunk, LogSource
from nemo_vfm.sparse.row_fingerprint import mix64_
from nemo_vfm.sparse.tables.counter_hash import name_salt

_JOINED_VALUES = 1 << 21  # values of the chunks that are joined before they are measured: 16 MiB


def session_uniform(session_B: Tensor, seed: int, purpose: str) -> Tensor:
    """A number in [0, 1) a sample, float64 B: the same for all samples of a session; another purpose gives others."""
    hash_B = mix64_(session_B + name_salt(seed, purpose))
    return ((hash_B >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def sampled_chunks(source: LogSource, fraction: float, seed: int) -> Iterator[LogChunk]:
    """The samples of about `fraction` of the sessions, in the log's order, in chunks of some millions of values."""
    waiting: list[LogChunk] = []
    first: LogChunk | None = None
    for chunk in source.log_chunks():
        chunk.require_valid()
        first = first or chunk
        if chunk.features.keys() != first.features.keys():
            raise DataError(
                f"a chunk of the log has the features {', '.join(chunk.features)}, but the first one "
                f"has {', '.join(first.features)}. All must have the same."
            )
        taken = _sessions_below(chunk, fraction, seed)
        waiting += [taken] if len(taken) else []
        if sum(map(num_values, waiting)) >= _JOINED_VALUES:
            yield LogChunk.cat(waiting)
            waiting = []
    if waiting:
        yield LogChunk.cat(waiting)


def num_values(chunk: LogChunk) -> int:
    """Ids and samples of a chunk: what its memory is proportional to."""
    return len(chunk) + sum(len(feature.values_N) for feature in chunk.features.values())


@dataclass(slots=True)
class SessionReservoir:
    """Keeps the sessions below a threshold of their hash; where they are too many, the threshold is halved."""

    fraction: float  #: of the sessions that it is given, the threshold at first
    max_values: int  #: ids and samples at most
    seed: int
    _chunks: list[LogChunk] = field(default_factory=list)

    def add(self, chunk: LogChunk) -> None:
        """Keep what is below the threshold."""
        self._chunks.append(_sessions_below(chunk, self.fraction, self.seed))
        while sum(map(num_values, self._chunks)) > self.max_values:
            self.fraction /= 2
            self._chunks = [_sessions_below(one, self.fraction, self.seed) for one in self._chunks]

    def log(self) -> LogChunk:
        """All that is kept, in the order of the log."""
        if not any(map(len, self._chunks)):
            raise DataError(
                f"no session has fewer than {self.max_values:,} ids, so none could be kept to choose groups; "
                "raise max_values, or check the sessions of the log."
            )
        return LogChunk.cat(self._chunks)


def _sessions_below(chunk: LogChunk, fraction: float, seed: int) -> LogChunk:
    if fraction >= 1:
        return chunk
    below_B = session_uniform(chunk.session_B, seed, "profiled sessions") < fraction
    return chunk.select(below_B.nonzero().squeeze(1))
