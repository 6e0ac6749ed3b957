"""Tests that popularities are probabilities, and that one fitted to a histogram repeats it."""

from pathlib import Path

import pytest
import torch

from nemo_vfm.recsys.profiling.locality_stats import ReuseHistogram, first_histogram
from nemo_vfm.recsys.profiling.reuse_mixture import fit
from nemo_vfm.recsys.sessions.id_feature import IdFeature
from nemo_vfm.recsys.sessions.id_popularity import FittedReuse, ZipfMandelbrot
from nemo_vfm.recsys.sessions.session_log import SessionLog

SHARES = [0.45, 0.2, 0.15, 0.1, 0.06, 0.03, 0.01] + [0.0] * 10


def histogram(folder: Path) -> Path:
    """A file in the format of `locality_stats`: rows looked up 1 to 64 times."""
    counts = [1.0, 2.0, 3.5, 6.0, 12.0, 24.0, 48.0]
    accesses = [share * count for share, count in zip(SHARES, counts, strict=False)]
    mean = sum(accesses)
    edges = [0, *(2**n for n in range(16))]
    lines = [f"Avg # of indices: {round(mean * 10**6)}", "Avg # of unique cols: 1000000"]
    for shares in (SHARES, [one / mean for one in accesses] + [0.0] * 10):
        bins = zip(edges[:-1], edges[1:], shares[:16], strict=True)
        lines += [f"({low}, {high}]: {share:.3f}" for low, high, share in bins] + [f"(32768+: {shares[16]:.3f}"]
    path = folder / "stats.txt"
    path.write_text("\n".join(lines))
    return path


def test_zipf_mandelbrot_has_its_formula_after_the_heavy_hitters():
    p = ZipfMandelbrot(exponent=1.2, shift=3.0, heavy_hitters=(0.25, 0.05)).probabilities(100)
    assert float(p.sum()) == pytest.approx(1) and p[:2].tolist() == [0.25, 0.05]
    assert float(p[11] / p[2]) == pytest.approx((13 / 4) ** -1.2)
    assert ZipfMandelbrot(exponent=0).probabilities(4).tolist() == [0.25] * 4


@pytest.mark.parametrize("heavy", [(0.6, 0.5), (0.0,), tuple([0.01] * 21), (-0.1,)])
def test_heavy_hitters_that_are_no_probabilities_are_refused(heavy):
    with pytest.raises(ValueError, match="at most 20 probabilities above 0"):
        ZipfMandelbrot(heavy_hitters=heavy)
    with pytest.raises(ValueError, match="no room for 2 heavy hitters"):
        ZipfMandelbrot(heavy_hitters=(0.1, 0.1)).probabilities(2)


def test_ids_of_a_fitted_log_are_reused_as_in_the_histogram(tmp_path: Path):
    wanted = first_histogram(histogram(tmp_path))
    rates = fit(wanted).rates_of_rows(40_000)
    assert len(rates) == 40_000
    feature = IdFeature(rows=40_000, popularity=FittedReuse(histogram=tmp_path / "stats.txt"))
    batch = round(float(rates.sum()))
    ids = SessionLog(num_samples=batch, features={"id": feature}).samples(0, batch).features["id"].values_N
    found = ReuseHistogram.of_counts(torch.bincount(ids).numpy())
    assert abs(found.rows - wanted.rows).max() < 0.015
    assert abs(found.accesses - wanted.accesses).max() < 0.015
    assert found.mean == pytest.approx(wanted.mean, rel=0.03)
