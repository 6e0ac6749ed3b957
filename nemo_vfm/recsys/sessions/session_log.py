"""Generates a log of sessions: interleaved in time, with features that change in groups, and labels by a teacher.

Shape letter: B samples.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

import torch

from nemo_vfm.core.bounds import require_between
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.sessions.id_feature import IdDraws, IdFeature
from nemo_vfm.recsys.sessions.random_stream import AliasTable, RandomStream
from nemo_vfm.recsys.sessions.session_window import SessionWindow, session_window
from nemo_vfm.recsys.sessions.teacher import FittedTeacher, Teacher
from nemo_vfm.sparse.log_chunk import LogChunk

_MAX_SAMPLES, _LARGEST_WINDOW = 10**10, 1 << 20
_CALIBRATED_ON = 1 << 18  # samples that the teacher is scaled on: its AUC is then within about 0.001 of the log's
_TICK_US = 1_000
_NO_GROUP = ""  # of features of items, whose keys are places


class SessionGroup:
    """Features that change together, such as those of a user.

    Args:
        unchanged: d, the chance that a sample leaves all of them as in the sample before of its session. A new draw may
            give the same id again.
        features: by name.
    """

    def __init__(self, *, unchanged: float, features: Mapping[str, IdFeature]) -> None:
        require_between(0, 1, unchanged=unchanged)
        if not features:
            raise ValueError("a group needs at least one feature; add one, or remove the group")
        self.unchanged, self.features = unchanged, dict(features)


class SessionLog:
    """A `LogSource`: samples in the order of time, each a function of the seed and its place.

    Time is in microseconds from the beginning of the log, 1,000 a sample on average.

    Args:
        num_samples: of the log.
        samples_per_session: S, the mean.
        lengths: of sessions: geometric, or all alike.
        groups: features that change inside of a session, by name of the group.
        features: features of items, drawn again for each sample.
        dense: names of dense features, each of a standard normal distribution and new for each sample.
        teacher: gives the labels `click`, drawn, and `teacher`, their probability; None gives no labels.
        drift: share of each table's ranks whose ids change from one window to the next.
        days: equal parts of the log. Sessions end with their day, and the teacher is scaled on the first one, so a day
            does not depend on how many follow.
        new_ids: share of each table's ids that are new on each day after the first; as many old ones come no more. New
            ids are counted on from `rows`.
        window: samples whose sessions run at the same time, at most 2^20; sessions end with their window.
        chunk_samples: samples of a chunk; the log does not depend on it.
        seed: of everything; None takes the run's where a job makes the log, and 0 elsewhere.
    """

    def __init__(
        self,
        *,
        num_samples: int,
        samples_per_session: float = 16.5,
        lengths: Literal["geometric", "fixed"] = "geometric",
        groups: Mapping[str, SessionGroup] | None = None,
        features: Mapping[str, IdFeature] | None = None,
        dense: Sequence[str] = (),
        teacher: Teacher | None = None,
        drift: float = 0.0,
        days: int = 1,
        new_ids: float = 0.0,
        window: int = 262_144,
        chunk_samples: int = 16_384,
        seed: int | None = None,
    ) -> None:
        require_between(1, _MAX_SAMPLES, num_samples=num_samples)
        require_between(1, _LARGEST_WINDOW, samples_per_session=samples_per_session, window=window)
        require_between(1, _LARGEST_WINDOW, chunk_samples=chunk_samples)
        require_between(0, 1, drift=drift, new_ids=new_ids)
        require_between(1, num_samples, days=days)
        if num_samples % days:
            raise ValueError(f"num_samples {num_samples:,} must be divisible by days {days}, which are equally long")
        if lengths == "fixed" and samples_per_session != round(samples_per_session):
            raise ValueError(
                f"samples_per_session {samples_per_session} must be a whole number where lengths are fixed"
            )
        self.num_samples, self.samples_per_session, self.lengths = num_samples, samples_per_session, lengths
        self.groups, self.features, self.dense = dict(groups or {}), dict(features or {}), tuple(dense)
        self.teacher, self.drift, self.window = teacher, drift, window
        self.days, self.new_ids, self._day_samples = days, new_ids, num_samples // days
        self._windows_a_day = math.ceil(self._day_samples / window)
        self._last_window: SessionWindow | None = None  # kept, since chunks come in order
        self._group_of = {name: group for group, one in self.groups.items() for name in one.features}
        self.chunk_samples, self.seed, self._own_seed = chunk_samples, seed or 0, seed is not None
        of_groups = [name for group in self.groups.values() for name in group.features]
        names = [*of_groups, *self.features, *self.dense]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)} names several features; give each its own name")
        if histories := [name for name, feature in self.features.items() if feature.history]:
            raise ValueError(f"{', '.join(histories)} is a history; move it to a group, where it can shift")
        if self.teacher is not None and (unknown := self.teacher.reads() - set(names)):
            raise ValueError(f"the teacher reads {', '.join(sorted(unknown))}, which the log does not have")

    def log_chunks(self) -> Iterator[LogChunk]:
        """See `LogSource`."""
        for day in range(self.days):
            yield from self.day_chunks(day)

    def day_chunks(self, day: int) -> Iterator[LogChunk]:
        """The samples of one day, the first being 0."""
        end = (day + 1) * self._day_samples
        for begin in range(end - self._day_samples, end, self.chunk_samples):
            yield self.samples(begin, min(begin + self.chunk_samples, end))

    def samples(self, begin: int, end: int, *, clustered: bool = False) -> LogChunk:
        """Samples begin..end of the log, made without those before them.

        Args:
            clustered: count samples session by session, each ordered by time, and not all by time.
        """
        chunk = self._without_labels(begin, end, clustered=clustered)
        if (teacher := self._fitted_teacher) is None:
            return chunk
        probability_B = teacher.probability(chunk)
        click_B = RandomStream(self.seed, "click").uniform(chunk.ids_B) < probability_B
        return replace(chunk, labels={"click": click_B.float(), "teacher": probability_B.float()})

    def with_seed(self, seed: int) -> "SessionLog":
        """The same log with this seed, unless it has its own."""
        if self._own_seed:
            return self
        return SessionLog(
            num_samples=self.num_samples, samples_per_session=self.samples_per_session, lengths=self.lengths,
            groups=self.groups, features=self.features, dense=self.dense, teacher=self.teacher, drift=self.drift,
            days=self.days, new_ids=self.new_ids, window=self.window, chunk_samples=self.chunk_samples, seed=seed,
        )  # fmt: skip

    def schema(self) -> TableSchema:
        """The columns of a feature table of it: groups as they change, histories as windows."""
        histories = [n for group in self.groups.values() for n, feature in group.features.items() if feature.history]
        return TableSchema(
            dense=self.dense, labels=() if self.teacher is None else ("click", "teacher"),
            features=[*self.features, *self._group_of],
            groups={name: [*group.features] for name, group in self.groups.items()}, windows=histories,
        )  # fmt: skip

    def rows(self) -> dict[str, int]:
        """Rows of each feature's table: the ids of all days."""
        return {name: draws.ids_until(self.days - 1) for name, draws in self._draws.items()}

    @cached_property
    def _draws(self) -> Mapping[str, IdDraws]:
        every = [pair for some in (self.features, *(g.features for g in self.groups.values())) for pair in some.items()]
        kinds = {(feature.popularity, feature.rows) for _, feature in every}
        tables = {(popularity, rows): AliasTable(popularity.probabilities(rows)) for popularity, rows in kinds}
        return {
            name: IdDraws(
                feature, name, self.seed, self.drift, tables[feature.popularity, feature.rows],
                round(self.new_ids * feature.rows), self._windows_a_day,
            )
            for name, feature in every
        }  # fmt: skip

    @cached_property
    def _fitted_teacher(self) -> FittedTeacher | None:
        """Scaled on up to four stretches of the first day, evenly spread."""
        if self.teacher is None:
            return None
        size = min(_CALIBRATED_ON // 4, self._day_samples)
        starts = sorted({(self._day_samples - size) * part // 3 for part in range(4)})
        reads = self.teacher.reads()
        parts = [self._without_labels(start, start + size, reads) for start in starts]
        return self.teacher.fit(LogChunk.cat(parts), self.rows(), self.seed)

    def _without_labels(
        self, begin: int, end: int, names: Collection[str] | None = None, *, clustered: bool = False
    ) -> LogChunk:
        """Samples with these features; None is all."""
        dense_names = [name for name in self.dense if names is None or name in names]
        draws = {name: one for name, one in self._draws.items() if names is None or name in names}
        parts = []
        while begin < end:
            day, place = divmod(begin, self._day_samples)
            number, first = day * self._windows_a_day + place // self.window, place - place % self.window
            if self._last_window is None or self._last_window.number != number:
                self._last_window = session_window(  # the last one of a day may be smaller
                    number, day * self._day_samples + first, min(self.window, self._day_samples - first),
                    seed=self.seed, mean_length=self.samples_per_session, lengths=self.lengths,
                    unchanged={name: group.unchanged for name, group in self.groups.items()},
                )  # fmt: skip
            window = self._last_window
            last = min(end, window.first + len(window.session_B))
            rows_B = torch.arange(begin, last) - window.first
            rows_B = window.clustered_B[rows_B] if clustered else rows_B
            place_B = rows_B + window.first
            time_B = place_B * _TICK_US + (RandomStream(self.seed, "tick").uniform(place_B) * _TICK_US).to(torch.int64)
            dense = {name: RandomStream(self.seed, name).normal(place_B).float() for name in dense_names}
            keys = {name: key_B[rows_B] for name, key_B in window.keys.items()} | {_NO_GROUP: place_B}
            ids = {
                name: one.rows(keys[self._group_of.get(name, _NO_GROUP)], window.number) for name, one in draws.items()
            }
            parts.append(LogChunk(place_B, window.session_B[rows_B], time_B, dense, {}, ids))
            begin = last
        return LogChunk.cat(parts)
