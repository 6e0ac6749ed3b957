"""Tests that the GPU's scripts run on tiny shapes and keep what they have measured when a side fails."""

import json
from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of, module_of


def test_a_side_that_fails_is_a_row_that_says_why_and_the_next_one_is_measured(tmp_path: Path, capsys):
    timing = module_of("gpu_steps/timing")
    report = timing.Report(tmp_path / "rows.json", only="side")
    report.side("side one", lambda: 1 / 0)
    report.side("another", lambda: {"ms": 2})
    report.side("side two", lambda: {"ms": 3})
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert rows == [
        {"side": "side one", "failed": "ZeroDivisionError: division by zero"},
        {"side": "side two", "ms": 3},
    ]
    assert "side two" in capsys.readouterr().out


@pytest.mark.slow  # processes that import everything
@pytest.mark.parametrize(("script", "sides"), [("attention", "tiny"), ("dlrm", "bags"), ("nemotron", "as it stands")])
def test_a_script_measures_tiny_shapes_and_says_so(script: str, sides: str, tmp_path: Path):
    said = figures_of(f"gpu_steps/{script}", "--quick", "--only", sides, folder=tmp_path)
    assert said["quick"] and said["rows"] and all(sides in row["side"] for row in said["rows"])
    assert any("failed" not in row for row in said["rows"])
