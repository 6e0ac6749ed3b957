"""Tests that the memory benchmark measures a row, and that its quick rows are near the formula."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of, module_of


@pytest.mark.slow  # a whole benchmark
def test_one_line_is_measured():
    memory_model = module_of("memory_model")
    case = memory_model.Case("GPT, Llama", {}, "fp32", "none")
    assert memory_model.step(0, case).most > 1e6


@pytest.mark.soak
def test_the_quick_lines_lie_near_the_formula(tmp_path: Path):
    figures = figures_of("memory_model", "--quick", folder=tmp_path)
    assert len(figures["lines"]) >= 4 and figures["worst"] < 0.05
