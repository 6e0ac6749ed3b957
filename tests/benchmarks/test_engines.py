"""Tests that the comparison of engines tries both, finds them equal, and says where one is not."""

from pathlib import Path

import pytest

from nemo_vfm.parallel.plan.layout_cases import LayoutCase
from nemo_vfm.parallel.verify.parity import ParityRow
from tests.support.benchmarks import figures_of, module_of


@pytest.mark.soak  # two minutes; tests/parallel compares the same layouts
def test_the_quick_comparison_finds_every_row_equal(tmp_path: Path) -> None:
    figures = figures_of("engines", "--quick", folder=tmp_path)
    assert figures["rows"] == figures["rows_equal"] >= 40
    assert figures["max_loss_difference"] <= 1e-5


@pytest.mark.parametrize("row", [
    ParityRow(LayoutCase({}), 1, "differs", 1e-3, 1.0, "head.weight"),
    ParityRow(LayoutCase({}), 1, "failed", reason="rank 0: out of memory"),
    ParityRow(LayoutCase({}), 2, "not seen", 0.0, 0.0, left_out="a sum"),
], ids=lambda row: row.verdict)  # fmt: skip
def test_what_is_not_as_it_should_be_ends_with_one(row: ParityRow, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    engines = module_of("engines")
    good = ParityRow(LayoutCase({"shard": 2}), 2, "equal", 1e-7, 1e-6, "head.weight")
    monkeypatch.setattr(engines, "rows", lambda engine, quick: [("DiT", good), ("DiT", row)])
    monkeypatch.setattr("sys.argv", ["engines.py"])
    assert engines.main() == 1
    told = capsys.readouterr().out
    assert f"| {row.verdict}" in told and "rows_equal 2" in told
