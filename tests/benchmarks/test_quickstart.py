"""Tests that the quick quickstart benchmark gives its figures."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of


@pytest.mark.soak
def test_the_quick_benchmark_of_the_quickstart_gives_its_figures(tmp_path: Path):
    figures = figures_of("quickstart", "--quick", folder=tmp_path, timeout_s=600)
    assert figures.keys() == {"shape_accuracy", "colour_accuracy", "direction_accuracy", "seam_ratio", "training_s"}
    assert all(0 <= figures[name] <= 1 for name in figures if name.endswith("accuracy")) and figures["seam_ratio"] > 0
