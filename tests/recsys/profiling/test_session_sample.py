"""Tests that profiles of a part of the sessions say how far they may be off, and are unbiased."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch

from nemo_vfm.recsys.profiling import session_sample
from nemo_vfm.recsys.profiling.jackknife import Jackknife, ratio, student_t
from nemo_vfm.recsys.profiling.log_measurements import (
    CHANGES,
    COVERED,
    SAMPLES,
    SESSIONS,
    VALUES,
    SessionSums,
    session_groups,
)
from nemo_vfm.recsys.profiling.profile_figures import icdf_interval, measured_factor, predicted_factor, unchanged_share
from nemo_vfm.recsys.profiling.session_sample import SessionReservoir, num_values, sampled_chunks, session_uniform
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from tests.support.session_log import LogInMemory, session_log

LOG = session_log(1200, 0, drifting=False)
CONFIDENCE, FRACTION, SEEDS = 0.9, 0.25, 120
#: By the number of the figure: S, coverage, mean length, d, factor.
FIGURES = ["samples_per_session", "coverage", "length", "unchanged", "factor"]


@cache
def intervals(fraction: float, seed: int) -> list[dict[str, float]]:
    sums = SessionSums(["history"], seed)
    for chunk in sampled_chunks(LogInMemory(LOG, len(LOG)), fraction, seed):
        sums.add(chunk)
    covered, values, changes = (sums.place("history", which) for which in (COVERED, VALUES, CHANGES))
    statistics = [
        ratio(SAMPLES, SESSIONS), ratio(covered, SAMPLES), ratio(values, SAMPLES),
        unchanged_share(SAMPLES, SESSIONS, changes), predicted_factor(SAMPLES, SESSIONS, changes),
    ]  # fmt: skip
    return [Jackknife(CONFIDENCE, fraction).estimate(sums.sums_GK, one) for one in statistics]


@pytest.mark.parametrize("figure", range(len(FIGURES)), ids=FIGURES)
def test_an_interval_holds_the_figure_of_the_whole_log_about_as_often_as_it_says(figure):
    whole = intervals(1.0, 0)[figure]
    assert whole["low"] == whole["value"] == whole["high"]
    drawn = [intervals(FRACTION, seed)[figure] for seed in range(SEEDS)]
    held = np.mean([one["low"] <= whole["value"] <= one["high"] for one in drawn])
    assert abs(held - CONFIDENCE) < 0.08, "three standard errors of a share of 0.9 in 120 draws"
    bias = np.mean([one["value"] for one in drawn]) / whole["value"] - 1
    assert abs(bias) < 0.01


def test_the_interval_of_a_factor_measured_in_batches_holds_that_of_the_whole_log():
    def measured(fraction: float, seed: int) -> dict[str, float]:
        kept = LogChunk.cat(list(sampled_chunks(LogInMemory(LOG), fraction, seed)))
        return measured_factor([kept.features["user"]], 64, Jackknife(CONFIDENCE, fraction))

    whole = measured(1.0, 0)["value"]
    found = [measured(FRACTION, seed) for seed in range(40)]
    assert 0.8 < np.mean([one["low"] <= whole <= one["high"] for one in found]) < 1


@pytest.mark.parametrize(("ids", "widest_at_half"), [(60, 2.0), (400, 3.0)])
def test_the_rows_that_hold_a_share_of_the_whole_log_are_inside_of_the_interval_of_the_icdf(ids, widest_at_half):
    log = session_log(500, 1, ids=ids, drifting=False)

    def interval(fraction: float, seed: int) -> dict[str, list[int]]:
        kept = LogChunk.cat(list(sampled_chunks(LogInMemory(log), fraction, seed)))
        counts_R = np.bincount(kept.features["user"].values_N.numpy(), minlength=ids)
        groups = session_groups(kept.session_B, seed)
        return icdf_interval(counts_R, kept.features["user"], groups, Jackknife(CONFIDENCE, fraction), 1.0)

    whole = interval(1.0, 0)
    assert whole["low"] == whole["value"] == whole["high"]
    found = [interval(0.3, seed) for seed in range(40)]
    for percent in (10, 30, 50, 70, 90, 99, 100):
        rows = whole["value"][percent]
        assert np.mean([one["low"][percent] <= rows <= one["high"][percent] for one in found]) > CONFIDENCE - 0.05
    assert np.mean([one["high"][50] for one in found]) < widest_at_half * whole["value"][50]
    in_sample = np.mean([one["value"][70] for one in found])
    assert in_sample < 0.95 * whole["value"][70], (
        "a sample alone says too few rows: without this the test shows nothing"
    )


def test_intervals_narrow_with_the_root_of_the_fraction():
    widths = [
        np.mean([one["high"] - one["low"] for one in (intervals(fraction, seed)[4] for seed in range(20))])
        for fraction in (0.1, 0.4)
    ]
    assert widths[0] / widths[1] == pytest.approx(((0.9 / 0.1) / (0.6 / 0.4)) ** 0.5, rel=0.15)


@pytest.mark.parametrize(
    ("confidence", "degrees", "expected"),
    [(0.95, 10, 2.2281), (0.99, 10, 3.1693), (0.95, 31, 2.0395), (0.99, 31, 2.744)],
)
def test_the_quantile_is_that_of_students_tables(confidence, degrees, expected):
    assert student_t(confidence, degrees) == pytest.approx(expected, rel=1e-3)


def pieces(log: LogChunk, size: int) -> Iterator[LogChunk]:
    return LogInMemory(log, size).log_chunks()


@pytest.mark.parametrize("fraction", [0.03, 0.5, 1.0])
def test_sessions_are_taken_whole_and_about_as_many_as_asked(fraction, monkeypatch):
    monkeypatch.setattr(session_sample, "_JOINED_VALUES", 200)
    parts = list(sampled_chunks(LogInMemory(LOG, 61), fraction, 5))
    taken = LogChunk.cat(parts)
    assert len(parts) > 1
    inside = torch.isin(LOG.session_B, taken.session_B)
    assert torch.equal(LOG.ids_B[inside], taken.ids_B)
    sessions = len(taken.session_B.unique())
    assert abs(sessions - 1200 * fraction) <= 3 * (1200 * fraction * (1 - fraction)) ** 0.5


def test_sums_and_samples_do_not_depend_on_the_pieces_of_a_log():
    found = []
    for size in (1, 17, 100):
        sums = SessionSums(list(LOG.features), 3)
        for piece in pieces(LOG.rows(0, 100), size):
            sums.add(piece)
        found.append(sums.sums_GK)
    assert all(np.array_equal(found[0], one) for one in found)


def test_a_reservoir_keeps_the_sessions_of_a_smaller_threshold_and_no_more_values_than_it_may():
    kept = SessionReservoir(1.0, 20_000, 7)
    for piece in pieces(LOG, 500):
        kept.add(piece)
    assert kept.fraction < 1 and 5_000 < num_values(kept.log()) <= 20_000
    below = session_uniform(LOG.session_B, 7, "profiled sessions") < kept.fraction
    assert torch.equal(kept.log().ids_B, LOG.ids_B[below])


def test_an_interval_of_the_icdf_narrows_where_the_rows_were_counted_on_more_sessions():
    numbers = torch.Generator().manual_seed(0)
    rows_N = (torch.rand(4000, generator=numbers) ** 3 * 50).long()
    counts_R = rows_N.bincount(minlength=50).numpy()
    lookups, group_B = Jagged(rows_N, torch.ones_like(rows_N)), torch.arange(4000) % 32
    wide, narrow = (icdf_interval(counts_R, lookups, group_B, Jackknife(0.95, 0.1), kept) for kept in (1.0, 0.04))
    widths = [[high - low for low, high in zip(one["low"], one["high"], strict=True)] for one in (wide, narrow)]
    assert all(few <= many for many, few in zip(*widths, strict=True)) and sum(widths[1]) < 0.8 * sum(widths[0])


def test_where_one_group_holds_all_lookups_nothing_is_known_of_the_others():
    rows_N = torch.tensor([0, 0, 1])
    lookups, group_B = Jagged(rows_N, torch.ones_like(rows_N)), torch.zeros(3, dtype=torch.int64)
    found = icdf_interval(rows_N.bincount(minlength=9).numpy(), lookups, group_B, Jackknife(0.95, 0.5), 1.0)
    assert found["value"][1:] == [1] * 66 + [2] * 34
    assert set(found["low"]) == {0} and set(found["high"]) == {9}
