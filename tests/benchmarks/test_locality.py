"""Tests the benchmark of reuse: its figures are there and small, for the published histograms."""

import os
from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of

DATA = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent")) / "recsys"


@pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
@pytest.mark.slow
def test_a_quick_run_comes_near_every_bin(tmp_path: Path):
    figures = figures_of("locality", "--quick", "--data", str(DATA.resolve()), folder=tmp_path)
    assert set(figures) == {"max_bin_error", "max_access_error", "peak_gb"}
    assert figures["max_bin_error"] < 0.003 and figures["max_access_error"] < 0.02
    assert figures["peak_gb"] > 0.05  # of this process, which has run other tests
