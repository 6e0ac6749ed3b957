"""Declares one feature of a made log: how many ids a sample has, and from which table.

Shape letters: B samples, N values.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.seed import generator
from nemo_vfm.recsys.sessions.id_popularity import Popularity, ZipfMandelbrot
from nemo_vfm.recsys.sessions.random_stream import AliasTable, RandomStream
from nemo_vfm.recsys.sessions.session_window import MAX_CHANGES
from nemo_vfm.sparse.jagged import Jagged, slice_positions

_MAX_ROWS = 10**8
_MAX_LENGTH = 1 << 16


class IdFeature:
    """A feature of ids.

    Args:
        rows: of its table; ids are 0 to rows - 1, and popular ones are anywhere among them. Where a log has new ids on
            later days, each day has this many, and the table is larger (`SessionLog.rows`).
        popularity: how often each is drawn.
        length: ids a sample; of each row between `shortest` and this one.
        shortest: None is `length`.
        history: with each change of the group the newest id is appended and the oldest dropped, and a session keeps its
            length; otherwise all ids are new.
        coverage: share of rows with any ids; of a history, of sessions.
    """

    def __init__(
        self,
        *,
        rows: int,
        popularity: Popularity = ZipfMandelbrot(),
        length: int = 1,
        shortest: int | None = None,
        history: bool = False,
        coverage: float = 1.0,
    ) -> None:
        require_between(1, _MAX_ROWS, rows=rows)
        require_between(1, _MAX_LENGTH, length=length)
        require_between(0, length, shortest=shortest)
        require_between(0, 1, coverage=coverage)
        self.rows, self.popularity, self.length, self.history, self.coverage = (
            rows, popularity, length, history, coverage,
        )  # fmt: skip
        self.shortest = length if shortest is None else shortest


@dataclass(eq=False)
class IdDraws:
    """Draws the ids of one feature."""

    feature: IdFeature  #: which
    name: str  #: its name, which its numbers follow from
    seed: int  #: of the log
    drift: float  #: share of the ranks that get other ids from one window of the log to the next
    table: AliasTable  #: draws ranks by the feature's popularity
    new_ids_a_day: int  #: how many ranks get ids that were never there on each day after the first
    windows_a_day: int  #: windows of the log in a day
    _ids: tuple[int, Tensor] = field(init=False)  #: a window, and the id of each rank in it

    def __post_init__(self) -> None:
        self._values, self._lengths = (RandomStream(self.seed, f"{self.name}/{what}") for what in ("ids", "lengths"))
        self._present = RandomStream(self.seed, f"{self.name}/present")
        self._ids = 0, self._drawn_ranks("ranks")

    def rows(self, key_B: Tensor, window: int) -> Jagged:
        """The ids of each key: of the session and its number of changes, or of the sample (`SessionWindow`)."""
        feature = self.feature
        whose_B = key_B - key_B % MAX_CHANGES if feature.history else key_B
        lengths_B = torch.full_like(key_B, feature.length)
        if feature.shortest < feature.length:
            choices = feature.length - feature.shortest + 1
            lengths_B = feature.shortest + (self._lengths.uniform(whose_B) * choices).to(torch.int64)
        if feature.coverage < 1:
            lengths_B = lengths_B * (self._present.uniform(whose_B) < feature.coverage)
        starts_B = key_B if feature.history else key_B * feature.length
        single = feature.length == 1 and feature.shortest == 1 and feature.coverage == 1
        places_N = starts_B if single else slice_positions(starts_B, lengths_B)
        return Jagged(self._ids_in(window)[self.table.draw(self._values.uniform(places_N))], lengths_B)

    def _ids_in(self, window: int) -> Tensor:
        """The id of each rank in this window: each window changes some of the one before."""
        if self.drift == 0 and self.new_ids_a_day == 0:
            return self._ids[1]
        at, ids_R = self._ids if self._ids[0] <= window else (0, self._drawn_ranks("ranks"))
        for number in range(at + 1, window + 1):
            moved = self._drawn_ranks("drift", number)[: round(self.drift * len(ids_R))]
            ids_R = ids_R.index_put((moved,), ids_R[moved.roll(1)])
            day, rest = divmod(number, self.windows_a_day)
            if rest == 0:
                replaced = self._drawn_ranks("new ids", day)[: self.new_ids_a_day]
                ids_R[replaced] = torch.arange(self.ids_until(day - 1), self.ids_until(day))
        self._ids = window, ids_R
        return ids_R

    def _drawn_ranks(self, *why: str | int) -> Tensor:
        return torch.randperm(self.feature.rows, generator=generator(self.seed, self.name, *why))

    def ids_until(self, day: int) -> int:
        """How many ids there have been at the end of a day, the first being 0."""
        return self.feature.rows + day * self.new_ids_a_day
