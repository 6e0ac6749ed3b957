"""Tests that a made log has the sessions, changes and popularity that were asked for, from any place on."""

import itertools

import pytest
import torch
from torch import Tensor

from nemo_vfm.recsys.sessions.id_feature import IdFeature
from nemo_vfm.recsys.sessions.id_popularity import ZipfMandelbrot
from nemo_vfm.recsys.sessions.session_log import SessionGroup, SessionLog
from nemo_vfm.recsys.sessions.teacher import Teacher
from nemo_vfm.sparse.dedup_groups import change_statistics
from nemo_vfm.sparse.log_chunk import LogChunk, LogSource

WIDE = IdFeature(rows=100_000, popularity=ZipfMandelbrot(exponent=0.5))  # so that hardly any new draw repeats the old


def whole(log: SessionLog) -> LogChunk:
    return LogChunk.cat(list(log.log_chunks()))


def columns(chunk: LogChunk) -> list[Tensor]:
    """Everything in it, in a fixed order."""
    ids = [
        part
        for name in sorted(chunk.features)
        for part in (chunk.features[name].values_N, chunk.features[name].lengths_B)
    ]
    named = [of[name] for of in (chunk.dense, chunk.labels) for name in sorted(of)]
    return [chunk.ids_B, chunk.session_B, chunk.time_B, *named, *ids]


def equal(one: LogChunk, other: LogChunk) -> bool:
    """Whether every bit agrees."""
    return all(torch.equal(a, b) for a, b in zip(columns(one), columns(other), strict=True))


def mixed(**changes: int | float) -> SessionLog:
    """A log with a bit of everything, in several windows."""
    settings: dict[str, int | float] = {"num_samples": 5_000, "samples_per_session": 7.0, "window": 1_500, "drift": 0.2}
    history = IdFeature(rows=5_000, length=6, shortest=2, history=True, coverage=0.8)
    user = SessionGroup(unchanged=0.7, features={"history": history, "country": IdFeature(rows=50)})
    bag = SessionGroup(unchanged=0.3, features={"bag": IdFeature(rows=500, length=4, shortest=0)})
    teacher = Teacher(auc=0.75, single=["item"], pairs=[["item", "country"]], dense=["age"])
    return SessionLog(
        groups={"user": user, "bag": bag}, features={"item": IdFeature(rows=300)}, dense=["age", "price"],
        teacher=teacher, **{**settings, **changes},  # type: ignore[arg-type]
    )  # fmt: skip


DAYS = pytest.mark.parametrize("days", [{}, {"days": 2, "new_ids": 0.3}], ids=["one day", "two days"])


@DAYS
def test_a_log_is_the_same_in_chunks_of_any_size_and_from_any_place_on(days):
    log = mixed(**days)
    expected = whole(log)
    assert isinstance(log, LogSource) and len(expected) == 5_000
    expected.require_valid(log.rows())
    for size in (700, 1_500, 4_096, 1 << 20):
        assert equal(whole(mixed(chunk_samples=size, **days)), expected)
    for begin, end in ((4_900, 5_000), (1_499, 1_501), (0, 5_000), (3_000, 4_500)):
        assert equal(mixed(**days).samples(begin, end), expected.rows(begin, end))
    assert not equal(whole(mixed(seed=1, **days)), expected)


@DAYS
def test_clustered_samples_are_those_of_the_log_by_session_and_then_by_time(days):
    log = mixed(**days)
    clustered = LogChunk.cat([log.samples(begin, begin + 1_000, clustered=True) for begin in range(0, 5_000, 1_000)])
    assert equal(clustered.select(clustered.ids_B.argsort()), whole(log))
    same = clustered.session_B[1:] == clustered.session_B[:-1]
    assert int((~same).sum()) + 1 == len(clustered.session_B.unique())
    assert bool((clustered.time_B.diff()[same] > 0).all())


def test_time_rises_and_sessions_are_interleaved():
    chunk = whole(mixed())
    assert bool((chunk.time_B.diff() >= 0).all())
    runs = int((chunk.session_B.diff() != 0).sum()) + 1
    assert runs > 0.9 * len(chunk)


@pytest.mark.parametrize(
    ("mean", "lengths"), [(16.5, "geometric"), (3.0, "geometric"), (8.0, "fixed"), (1.0, "geometric")]
)
def test_sessions_have_the_mean_length_asked_for(mean, lengths):
    log = SessionLog(num_samples=100_000, samples_per_session=mean, lengths=lengths, features={"a": IdFeature(rows=9)})
    counts = whole(log).session_B.unique(return_counts=True)[1].double()
    error = 5 * mean / len(counts) ** 0.5
    assert counts.mean() == pytest.approx(mean, abs=error if lengths == "geometric" else 1e-9)
    deviation = (mean * (mean - 1)) ** 0.5 if lengths == "geometric" else 0.0
    assert counts.std() == pytest.approx(deviation, rel=0.1, abs=1e-9)


def test_groups_change_as_often_as_asked_and_their_features_together():
    chances = {"rare": 0.95, "half": 0.5, "never": 1.0, "always": 0.0}
    groups = {
        name: SessionGroup(unchanged=d, features={f"{name}_{number}": WIDE for number in range(2)})
        for name, d in chances.items()
    }
    chunk = SessionLog(num_samples=60_000, groups=groups).samples(0, 60_000, clustered=True)
    for name, d in chances.items():
        features = [chunk.features[f"{name}_{number}"] for number in range(2)]
        for measured in (features, features[:1]):
            assert change_statistics(measured, chunk.session_B).unchanged == pytest.approx(d, abs=0.008)
        assert not torch.equal(features[0].values_N, features[1].values_N)
    apart = change_statistics([chunk.features["rare_0"], chunk.features["half_0"]], chunk.session_B).unchanged
    assert apart == pytest.approx(0.95 * 0.5, abs=0.01)  # groups change independently of each other


def test_the_first_sample_of_a_session_is_drawn_anew():
    groups = {"user": SessionGroup(unchanged=1.0, features={"id": WIDE})}
    chunk = SessionLog(num_samples=20_000, groups=groups).samples(0, 20_000, clustered=True)
    first = torch.diff(chunk.session_B, prepend=torch.tensor([-1])) != 0
    ids = chunk.features["id"].values_N[first]
    assert len(ids.unique()) > 0.98 * len(ids)


def test_a_history_drops_its_oldest_item_and_appends_one_with_each_change():
    history = IdFeature(rows=10**6, popularity=ZipfMandelbrot(exponent=0.0), length=9, shortest=3, history=True)
    groups = {"user": SessionGroup(unchanged=0.6, features={"items": history, "mark": WIDE})}
    chunk = SessionLog(num_samples=5_000, groups=groups).samples(0, 5_000, clustered=True)
    rows = [row.tolist() for row in chunk.features["items"].values_N.split(chunk.features["items"].lengths_B.tolist())]
    marks, sessions, shifts = chunk.features["mark"].values_N.tolist(), chunk.session_B.tolist(), 0
    for at, (before, now) in enumerate(itertools.pairwise(rows)):
        if sessions[at] != sessions[at + 1]:
            continue
        changed = marks[at] != marks[at + 1]
        assert now == before if not changed else (now[:-1] == before[1:] and now != before)
        shifts += changed
    assert shifts > 1_000 and {len(row) for row in rows} == set(range(3, 10))


def test_lengths_and_coverage_are_those_asked_for():
    bag = IdFeature(rows=100, length=5, shortest=2, coverage=0.7)
    lengths = whole(SessionLog(num_samples=20_000, features={"bag": bag})).features["bag"].lengths_B
    assert (lengths > 0).double().mean() == pytest.approx(0.7, abs=0.02)
    kept = lengths[lengths > 0].double()
    assert set(kept.tolist()) == {2.0, 3.0, 4.0, 5.0} and kept.mean() == pytest.approx(3.5, abs=0.05)


@pytest.mark.parametrize(("exponent", "shift"), [(1.05, 0.0), (0.8, 10.0), (1.5, 2.7)])
def test_ids_follow_zipf_mandelbrot_after_the_heavy_hitters(exponent, shift):
    popularity = ZipfMandelbrot(exponent=exponent, shift=shift, heavy_hitters=(0.2, 0.1))
    feature = IdFeature(rows=2_000, popularity=popularity)
    ids = whole(SessionLog(num_samples=300_000, features={"id": feature})).features["id"].values_N
    counts = ids.bincount(minlength=2_000).sort(descending=True).values.double()
    assert counts[:2] / 300_000 == pytest.approx([0.2, 0.1], abs=0.004)
    rank = torch.arange(1, 101, dtype=torch.float64)  # many draws each, so that their order is hardly one of chance
    x, y = torch.log(rank + shift), torch.log(counts[2:102])
    weight = counts[2:102] / counts[2:102].sum()
    x, y = x - (weight * x).sum(), y - (weight * y).sum()
    slope = float((weight * x * y).sum() / (weight * x * x).sum())
    assert -slope == pytest.approx(exponent, abs=0.04)


def test_popular_ids_are_anywhere_in_the_table_and_of_each_table_others():
    log = SessionLog(num_samples=50_000, features={name: IdFeature(rows=1_000) for name in "abc"})
    top = [int(whole(log).features[name].values_N.bincount().argmax()) for name in "abc"]
    assert len(set(top)) == 3 and max(top) > 100


def test_drift_gives_a_share_of_the_ranks_other_ids_with_each_window():
    def tops(drift: float) -> list[Tensor]:
        feature = IdFeature(rows=40, popularity=ZipfMandelbrot(exponent=2.0))
        log = SessionLog(num_samples=80_000, window=20_000, drift=drift, features={"id": feature})
        ids = whole(log).features["id"].values_N
        return [part.bincount(minlength=40) for part in ids.split(20_000)]

    still, moving = tops(0.0), tops(0.5)
    assert all(
        abs(float(now[now.argmax()]) / float(was[now.argmax()]) - 1) < 0.1 for was, now in itertools.pairwise(still)
    )
    apart = [0.5 * float((was - now).abs().sum()) / 20_000 for was, now in itertools.pairwise(moving)]
    assert max(apart) > 0.2 and 0.5 * float((still[0] - still[1]).abs().sum()) / 20_000 < 0.05


@pytest.mark.parametrize("drift", [0.0, 0.4])
def test_each_day_has_as_many_ids_and_the_share_asked_for_never_came_before(drift):
    flat = ZipfMandelbrot(exponent=0.0)  # so that every id comes
    history = IdFeature(rows=80, popularity=flat, length=4, history=True)
    log = SessionLog(
        num_samples=30_000, days=3, new_ids=0.25, window=4_000, drift=drift, samples_per_session=4.0,
        groups={"user": SessionGroup(unchanged=0.5, features={"seen": history})},
        features={"item": IdFeature(rows=100, popularity=flat), "few": IdFeature(rows=1, popularity=flat)},
    )  # fmt: skip
    days = [LogChunk.cat(list(log.day_chunks(day))) for day in range(3)]
    for name, rows, new in (("seen", 80, 20), ("item", 100, 25), ("few", 1, 0)):
        came: set[int] = set()
        for chunk in days:
            ids = set(chunk.features[name].values_N.tolist())
            assert len(ids) == rows
            assert ids - came == set(range(len(came), len(came) + new if came else rows))
            came |= ids
        assert log.rows()[name] == len(came)


def test_a_day_does_not_depend_on_those_that_follow_and_shares_no_session_with_them():
    three, five = (mixed(num_samples=2_500 * days, days=days, new_ids=0.2) for days in (3, 5))
    assert equal(whole(five).rows(0, 7_500), whole(three))
    days = [set(LogChunk.cat(list(five.day_chunks(day))).session_B.tolist()) for day in range(5)]
    assert len(set.union(*days)) == sum(map(len, days))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"features": {"a": IdFeature(rows=5)}, "dense": ["a"]}, "a names several features"),
        ({"features": {"a": IdFeature(rows=5, history=True)}}, "a is a history; move it to a group"),
        ({"teacher": Teacher(single=["b"], pairs_share=0, dense_share=0)}, "the teacher reads b"),
        ({"lengths": "fixed", "samples_per_session": 2.5}, "must be a whole number where lengths are fixed"),
        ({"num_samples": 0}, "num_samples must be at least 1"),
        ({"drift": 1.5}, "drift must be at most 1"),
        ({"new_ids": 1.5}, "new_ids must be at most 1"),
        ({"days": 3}, "num_samples 10 must be divisible by days 3"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        SessionLog(**{"num_samples": 10, **settings})
