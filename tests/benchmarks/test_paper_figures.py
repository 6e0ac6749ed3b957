"""Tests that docs/reference/performance.md is what `make perf` writes, and how near it is to published figures."""

import sys
from types import ModuleType

import pytest

from tests.support.benchmarks import module_of
from tests.support.repository import ROOT


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """benchmarks/paper_figures.py, which finds the files beside it."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return module_of("paper_figures")
    finally:
        sys.path.pop(0)


@pytest.mark.slow
def test_the_page_is_what_its_benchmark_writes(page: ModuleType):
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), (
        "docs/reference/performance.md is out of date: run make perf"
    )


#: Of each figure's published rows, ours over theirs.
OFF = {
    "exchange": (0.87, 1.0), "inference": (0.83, 0.85), "fp8_attention": (0.79, 1.14), "fp8_linears": (0.89, 1.02),
    "scaling": (0.9, 1.06),
}  # fmt: skip


@pytest.mark.parametrize("figure", OFF)
def test_published_figures_come_out_as_the_page_says(page: ModuleType, figure: str):
    rows = [row for row in getattr(page.figures, figure)() if row.published is not None]
    low, high = OFF[figure]
    assert rows and all(low <= row.ours / row.published <= high for row in rows), rows


def test_a_cell_that_nobody_published_is_not_known_and_has_no_deviation(page: ModuleType):
    row = page.figures.Row
    assert list(page._cell(row("a", None, 1.234), "x", False)) == ["a", "not known", "1.23x", "-"]
    assert list(page._cell(row("a", 1.0, None), "x", False)) == ["a", "1.00x", "not known", "-"]
    assert list(page._cell(row("a", 2.0, 1.0), "x", False)) == ["a", "2.00x", "1.00x", "-50.0 %"]
