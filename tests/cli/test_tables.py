"""Tests that tables on any terminal break no cell inside a word and cut no value off."""

from pathlib import Path

import pytest

from nemo_vfm.runtime import sweep_table
from nemo_vfm.runtime.terminal import Terminal

WORDS = "the class nemo_vfm.synth.prompts.DemoPromptsOfManyKinds makes prompts and is long enough to be wrapped"
ROWS = [("ok", "Python", "3.11"), ("missing", "a decoder with a name", WORDS)]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_no_cell_is_broken_inside_a_word(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    Terminal().table(ROWS, {})
    told = capsys.readouterr().out
    assert told.split() == " ".join(" ".join(row) for row in ROWS).split()
    assert all(len(line) <= columns or len(line.split()) == 1 for line in told.splitlines())


@pytest.mark.parametrize(("columns", "left_out"), [(60, True), (160, False)])
def test_a_sweeps_table_leaves_figures_out_and_says_so_before_it_cuts_a_value_off(
    columns, left_out, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", str(columns))
    figures = {"train/val_loss": 0.123456, "train/loss": 0.3, "sample/videos": 12.0, "train/training_s": 99.0}
    choices = [{"optimizer.lr": "0.001", "model.depth": depth} for depth in ("12", "24")]
    rows = [
        {"name": one["model.depth"], "choices": one, "state": "done", "figures": figures, "seconds": 100.0}
        for one in choices
    ]
    sweep_table.show(["optimizer.lr", "model.depth"], rows, Path("runs/x"))
    told = capsys.readouterr().out
    assert "optimizer.lr" in told and "0.12346" in told and "…" not in told
    assert ("Left out to fit the terminal: " in told) == left_out
    assert all(name in told for name in figures)
