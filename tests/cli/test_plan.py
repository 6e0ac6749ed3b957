# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""`nemo-vfm plan` on a small recipe in; the page, the JSON and the ingredient that it writes out."""

import json

import pytest

from tests.support.recipe_folder import ROOT

SMALL = str(ROOT / "recipes/diffusion/train_small.yaml")
SAMPLE = ("--latents", "4,8,8")


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


def test_a_plan_is_written_and_a_recipe_that_takes_it_checks(kitchen, capsys, wide):
    words = ["plan", "--gpus", "4", *SAMPLE, "--write", "conf/parallel/mine.yaml", SMALL, "parallel={context: 4}"]
    assert kitchen.main(*words) == 0
    shown = capsys.readouterr()
    assert "The recipe's own layout (context 4 ring)" in shown.out and "Recommended" in shown.out
    assert "Predicted, not measured" in shown.out and "by the command line" in shown.out
    text = (kitchen.folder / "conf/parallel/mine.yaml").read_text()
    assert text.startswith("# ") and "_target_: nemo_vfm.parallel.plan.ParallelPlan\n" in text
    assert kitchen.main("check", SMALL, "parallel=mine", "data.shards=x", "--gpus", "4") == 0
    said = capsys.readouterr().out
    assert "idle" not in said and "would not start" not in said and "cannot be divided" not in said
    (command,) = [line.strip() for line in shown.out.splitlines() if line.strip().startswith("nemo-vfm run")]
    assert "parallel={" in command
    assert kitchen.main(*words) == 2  # nothing is ever overwritten
    assert "mine.yaml" in capsys.readouterr().err


def test_json_has_what_a_launcher_asks(kitchen, capsys):
    assert kitchen.main("plan", SMALL, "--gpus", "16", "--network", "dgx_a100", "--gpu", "a100", *SAMPLE, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["nodes"], found["gpus_per_node"], found["gpus"]) == (2, 8, 16)
    best = found["ranked"][0]
    seconds = sum(best["seconds"].values())
    assert best["fits"] and best["step_s"] == pytest.approx(seconds)
    assert best["memory_bytes"]["total"] < found["gpu"]["usable_bytes"]
    assert best["days"] == pytest.approx(seconds * found["steps"] / 86_400)
    assert best["gpu_hours"] == pytest.approx(best["days"] * 24 * 16)
    assert found["checkpoint_bytes"] > 12 * found["model"]["parameters"] and found["checkpoints_kept"] >= 1
    assert "causal attention counted whole" in found["mfu"] and found["own"] is None
    assert {group["about"] for group in found["refused"]} >= {"tensor", "pipeline"}


@pytest.mark.parametrize(("words", "said"), [
    (("--gpu", "h10"), "did you mean h100"), (("--network", "dgx_h10"), "did you mean dgx_h100"),
    (("--gpus", "0", *SAMPLE), "at least one GPU"), ((), "give their latents' frames, rows and columns"),
    (("--latents", "4x8x8"), "such as 32,96,96"), (("--phase", "one", *SAMPLE), "has no phases"),
])  # fmt: skip
def test_a_question_that_cannot_be_answered_is_told_what_is_missing(words, said, kitchen, capsys):
    gpus = () if "--gpus" in words else ("--gpus", "2")
    assert kitchen.main("plan", SMALL, *gpus, *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_one_gpu_is_told_what_would_make_it_fit(kitchen, capsys, wide):
    large = ["model.width=2048", "model.depth=20", "model.heads=16", "data.batch_size=8"]
    assert kitchen.main("plan", SMALL, "--gpus", "1", "--gpu", "rtx_4090", *SAMPLE, *large) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "does not fit as it is" in shown and "What would make it fit" in shown
    assert "engine.offload_optimizer=true" in shown and "share the weights over" in shown
