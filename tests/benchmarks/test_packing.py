"""Tests that the quick packing benchmark gives its figures."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of

pytestmark = pytest.mark.slow  # a whole benchmark


def test_the_quick_benchmark_of_packing_gives_its_figures(tmp_path: Path):
    figures = figures_of("packing", "--quick", "--rounds", "1", folder=tmp_path)
    assert figures.keys() == {"tokens_per_s_ratio", "pack_time_s"}
    assert figures["tokens_per_s_ratio"] > 0 and 0 < figures["pack_time_s"] < 5
