"""Tests that the checkpoint benchmark measures how long training waits and how much it slows down."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of, module_of


def test_few_megabytes_give_both_figures(tmp_path: Path):
    checkpoint = module_of("checkpoint")
    figures = checkpoint.measure(tmp_path, 16, 1)
    assert set(figures) == {"stall_ratio", "step_inflation"} and all(value > 0 for value in figures.values())


@pytest.mark.soak
def test_the_quick_benchmark_ends(tmp_path: Path):
    assert figures_of("checkpoint", "--quick", folder=tmp_path)["stall_ratio"] > 0
