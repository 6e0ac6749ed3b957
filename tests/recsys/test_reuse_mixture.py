"""Tests that ids drawn from a fitted mixture are reused as the histogram says."""

import os
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from nemo_vfm.core.errors import DataError
from nemo_vfm.recsys.profiling import reuse_mixture
from nemo_vfm.recsys.profiling.locality_stats import ReuseHistogram, first_histogram
from nemo_vfm.recsys.profiling.reuse_mixture import ReuseMixture, draw_counts, fit, nonnegative_min_squares

DATA = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent")) / "recsys"


def of_mixture(num_touched: int, seed: int) -> ReuseHistogram:
    """Reuse counted over draws of numpy's Poisson, without the code under test."""
    numbers = np.random.default_rng(seed)
    counts = [numbers.poisson(rate, num_touched) for rate in (0.5, 6.0, 90.0)]
    kept = [of[of > 0][: int(num_touched * share)] for of, share in zip(counts, (0.3, 0.2, 0.01), strict=True)]
    return ReuseHistogram.of_counts(np.concatenate(kept))


def test_bins_are_closed_above_and_leave_out_rows_without_lookups():
    found = ReuseHistogram.of_counts(np.array([0, 1, 2, 3, 4, 5, 32768, 32769]))
    assert (found.rows[:4] * 7).round(6).tolist() == [1, 1, 2, 1]
    assert (found.rows[-2:] * 7).round(6).tolist() == [1, 1]
    assert found.accesses[-1] == pytest.approx(32769 / 65552) and found.mean == pytest.approx(65552 / 7)


def test_min_squares_equal_the_best_of_all_subsets():
    numbers = np.random.default_rng(0)
    for _ in range(20):
        a, b = numbers.normal(size=(7, 5)), numbers.normal(size=7)
        x = nonnegative_min_squares(a, b)
        best = np.linalg.norm(b)
        for places in (list(of) for size in range(1, 6) for of in combinations(range(5), size)):
            inside = np.linalg.lstsq(a[:, places], b, rcond=None)[0]
            if (inside >= 0).all():
                best = min(best, np.linalg.norm(a[:, places] @ inside - b))
        assert (x >= 0).all() and np.linalg.norm(a @ x - b) == pytest.approx(best)


def test_min_squares_of_many_similar_columns_are_stationary_and_no_step_raises_the_error(monkeypatch):
    inside = reuse_mixture._inside

    def watched(a, b, x, free):
        found = inside(a, b, x, free)
        assert np.linalg.norm(a @ found - b) <= np.linalg.norm(a @ x - b) * (1 + 1e-9)
        return found

    monkeypatch.setattr(reuse_mixture, "_inside", watched)
    for num_rows, num_columns, seed in ((34, 60, 5), (80, 60, 0), (34, 100, 17), (34, 150, 17)):
        at, centre = np.linspace(0, 1, num_rows)[:, None], np.linspace(0, 1, num_columns)
        a = np.exp(-((9 * (at - centre)) ** 2))  # neighbours are alike, as those of a grid of rates are
        b = np.abs(np.sin(9 * at[:, 0])) + 0.1 * np.random.default_rng(seed).normal(size=num_rows)
        x = nonnegative_min_squares(a, b)
        slope = a.T @ (b - a @ x)
        assert (x >= 0).all() and slope.max() < 1e-8 and np.abs(slope[x > 0]).max() < 1e-8


def test_every_row_is_drawn_in_proportion_to_its_rate():
    rates = np.tile([0.0, 1.0, 4.0, 0.0], 3) * 400_000  # several chunks of ids
    counts = draw_counts(rates, seed=0)
    assert counts.sum() == rates.sum() and (counts[rates == 0] == 0).all()
    assert np.abs(counts - rates).max() < 5 * np.sqrt(rates.max())


def test_drawn_ids_repeat_a_known_mixture():
    wanted = of_mixture(200_000, seed=1)
    drawn = ReuseHistogram.of_counts(draw_counts(fit(wanted).rates(200_000), seed=2))
    assert np.abs(drawn.rows - wanted.rows).max() < 0.004
    assert np.abs(drawn.accesses - wanted.accesses).max() < 0.01
    assert drawn.mean == pytest.approx(wanted.mean, rel=0.01)


def test_as_many_rows_are_looked_up_as_asked_for():
    mixture = ReuseMixture(np.array([0.5, 20.0]), np.array([0.6, 0.4]))
    assert all(len(mixture.rates_of_rows(rows)) == rows for rows in (7, 1_000, 12_345))
    rates = mixture.rates(10_000)
    assert len(rates) == round(6_000 / (1 - np.exp(-0.5)) + 4_000)
    counts = draw_counts(rates, seed=0)
    assert counts.sum() == round(rates.sum()) and (counts > 0).sum() == pytest.approx(10_000, rel=0.02)


def test_a_seed_gives_the_same_counts_and_another_gives_others():
    rates = np.full(1_000, 3.0)
    assert (draw_counts(rates, seed=1) == draw_counts(rates, seed=1)).all()
    assert (draw_counts(rates, seed=1) != draw_counts(rates, seed=2)).any()


def test_a_cut_file_is_named(tmp_path: Path):
    (tmp_path / "cut.txt").write_text("Avg # of indices: 10\nAvg # of unique cols: 5\n(0, 1]: 0.5\n")
    with pytest.raises(DataError, match=r"cut\.txt does not hold two histograms"):
        first_histogram(tmp_path / "cut.txt")


@pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
@pytest.mark.parametrize(("year", "mean", "once"), [(2021, 6.906, (0.473, 0.069)), (2022, 12.744, (0.342, 0.027))])
@pytest.mark.slow
def test_published_histograms_are_repeated(year: int, mean: float, once: tuple[float, float]):
    printed = first_histogram(DATA / f"locality_stats_{year}.txt")
    assert printed.mean == pytest.approx(mean, abs=0.001)
    assert (printed.rows[0], printed.accesses[0]) == once
    rates = fit(printed).rates(1_000_000)
    drawn = ReuseHistogram.of_counts(draw_counts(rates, seed=0))
    assert np.abs(drawn.rows - printed.rows).max() < 0.001
    # Above 1024 a bin has few rows here, and a rate near an edge falls on either side of it: those bins as one.
    errors = drawn.accesses - printed.accesses
    one_row = rates.max() / rates.sum()
    assert np.abs(errors[:11]).max() < 0.002 and abs(errors[11:].sum()) < 0.002 + one_row
