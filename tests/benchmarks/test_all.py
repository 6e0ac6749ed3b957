"""Tests that every benchmark has a test that runs it."""

import pytest

from tests.support.repository import ROOT

BENCHMARKS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
TESTS = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path.name != "test_all.py"]


def test_there_are_benchmarks():
    assert len(BENCHMARKS) > 10


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_is_run_by_a_test(name: str):
    ways = (f'figures_of("{name}"', f'module_of("{name}"', f"benchmarks/{name}.py", f'"benchmarks" / "{name}.py"')
    assert any(way in text for text in TESTS for way in ways), f"no test runs benchmarks/{name}.py"
