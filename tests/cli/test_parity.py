"""Tests the tables and exit statuses of `parity` and `diverge`."""

import json
from contextlib import nullcontext
from typing import Any

import pytest

from nemo_vfm.cli import divergence_sides
from nemo_vfm.cli.main import main
from nemo_vfm.cli.verbs import parity as verb
from nemo_vfm.parallel.plan.layout_cases import LayoutCase
from nemo_vfm.parallel.verify import parity, rank_pool
from tests.parallel.test_parity import off_by_a_little
from tests.support.ranks import POOL

SMALL = "diffusion/train_small"
FP32 = "precision=fp32"  # a machine that multiplies bfloat16 takes that by itself, and allows for more


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's processes, since starting others takes seconds."""
    for module in (rank_pool, divergence_sides):
        monkeypatch.setattr(module, "Pool", lambda most, first: nullcontext(POOL))


@pytest.mark.cluster
def test_the_quick_table_of_two_ranks_is_as_it_should_be(capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["parity", SMALL, "--quick", "--ranks", "1,2"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{SMALL}, made small\n") and "DiT of" in shown
    assert "All as expected: " in shown and "1 of 1 controls detected" in shown
    rows = [line for line in shown.splitlines() if line.startswith("      ")]
    assert len(rows) >= 11 and max(map(len, rows)) <= 100
    for choice in (
        "pipeline 2",
        "context 2",
        "tensor 2 sequence",
        "shard 2",
        "replicate 2",
        "zero-bubble",
        "ulysses",
        "context 2 ring",
        "packed",
    ):
        assert any(choice in row and " equal " in row for row in rows), choice


@pytest.mark.soak  # tests/parallel/fp8 compares layouts
def test_in_fp8_every_layout_is_one_device_that_passes_as_many_samples(capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    layouts = [
        LayoutCase({"tensor": 2, "sequence": True}),
        LayoutCase({"shard": 2, "microbatches": 2}),
        LayoutCase({"context": 2}),
    ]
    monkeypatch.setattr(verb, "_choose_layouts", lambda *_: layouts)
    assert main(["parity", "llm/nemotron4_1b", "precision=fp8", "--ranks", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "in FP8 (recipe current) and float64" in shown and "3 equal, 1 of 1 controls detected" in shown


@pytest.mark.cluster
def test_a_row_that_differs_ends_with_one(capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setattr(parity, "differences", off_by_a_little)
    monkeypatch.setattr(verb, "_choose_layouts", lambda *_: [LayoutCase({"tensor": 2})])
    assert main(["parity", SMALL, "--ranks", "2", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["equal"] and [row["verdict"] for row in told["rows"]] == ["differs", "seen"]
    wrong = told["rows"][0]
    assert wrong["gradient"] > told["tolerance"]["gradient"] and wrong["parameter"] and wrong["ranks"] == 2


@pytest.mark.parametrize(("words", "said"), [
    (["parity", SMALL, "--ranks", "0"], "--ranks takes numbers from 1 to 8"),
    (["parity", "synthetic/shapes"], "trains nothing"),
    (["parity", "curation/train_scorer"], "cannot be built without its files"),
    (["diverge", SMALL, SMALL, SMALL], "one recipe or two can be compared, got 3"),
    (["diverge", SMALL, "--b", "parallel.shard=16"], "needs 16 devices"),
    (["diverge", SMALL, "--steps", "0"], "--steps takes one or more"),
    (["diverge", SMALL, "--b", "parallel.tensor=2", "model.heads=1"], "1 attention heads cannot be divided by 2"),
])  # fmt: skip
def test_what_cannot_be_tried_gets_a_sentence(capsys: pytest.CaptureFixture[str], words: list[str], said: str):
    assert main(words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.cluster
def test_two_layouts_that_agree_end_with_zero(capsys: pytest.CaptureFixture[str]):
    words = ["--a", "parallel.shard=2", "--b", "parallel.tensor=2", "parallel.sequence=true"]
    assert main(["diverge", SMALL, FP32, *words]) == 0
    shown = capsys.readouterr().out
    assert f"A  {SMALL} {FP32} parallel.shard=2: shard 2, float32" in shown
    assert "They agree: nothing differs by more than 0.0001" in shown and "not compared" not in shown


@pytest.mark.cluster
def test_where_two_sides_part_is_said_and_ends_with_one(capsys: pytest.CaptureFixture[str]):
    assert main(["diverge", SMALL, FP32, "--a", "optimizer.lr=1e-3", "--b", "optimizer.lr=2e-3", "--json"]) == 1
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["parting"]["step"] == 1 and told["parting"]["phase"] == "weight"
    assert main(["diverge", SMALL, "--a", "precision=fp32", "--b", "precision=bf16", "--tolerance", "1e-4"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "They diverge at step 1, forward, at the output of " in shown and "Rank 0 of B is furthest" in shown
