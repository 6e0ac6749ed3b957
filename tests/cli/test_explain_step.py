"""Tests that `explain` shows a step's samples, with the losses of the run itself."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import yaml

from nemo_vfm.cli.main import main
from tests.recipes.conftest import latents_for
from tests.support.repository import ROOT

RECIPE = ROOT / "recipes/diffusion/train_small.yaml"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of the small training, of which the last leaves a sample out, without running averages."""
    folder = tmp_path_factory.mktemp("steps")
    shards = latents_for(RECIPE, folder / "shards")
    common = ["run", str(RECIPE), "--overlay", "smoke", f"data.shards={shards}", "loop.checkpoint.keep_last=null",
              "loop.checkpoint.every_steps=1", "~callbacks", "~loggers", "loop.validation=null"]  # fmt: skip
    assert main([*common, f"run_dir={folder / 'first'}", "loop.duration=3 steps"]) == 0
    left_out = told_of(folder / "first", 3)["samples"][0]["key"]
    left = ["callbacks.skip=named", "callbacks.skip.steps=[2]", f"callbacks.skip.samples=['{left_out}']"]
    words = ["loop.duration=4 steps", *left]
    assert main([*common, f"run_dir={folder / 'run'}", *words]) == 0
    return folder


def told_of(run: Path, step: int, *words: str) -> dict[str, Any]:
    from dataclasses import asdict

    from nemo_vfm.explain.step_report import tell

    found: dict[str, Any] = asdict(tell(run, step, trust=[], losses="--no-losses" not in words))
    return found


@pytest.mark.parametrize("step", [1, 2, 3])
def test_the_losses_of_a_steps_samples_are_those_that_the_run_had(run: Path, step: int):
    told = told_of(run / "first", step)
    assert told["exact"] and len(told["samples"]) == 2
    assert told["loss"] == pytest.approx(told["recorded"]["loss"], rel=1e-5)
    assert sum(sample["share"] for sample in told["samples"]) == pytest.approx(1)
    assert all(sample["caption"] and 0 <= sample["numbers"]["noise"] <= 1 for sample in told["samples"])


def test_every_sample_of_an_epoch_is_told_once(run: Path):
    keys = [sample["key"] for step in (1, 2, 3) for sample in told_of(run / "first", step, "--no-losses")["samples"]]
    assert len(keys) == len(set(keys)) == 6


def test_what_a_recipe_leaves_out_is_marked_and_does_not_count(run: Path, capsys: pytest.CaptureFixture[str]):
    told = told_of(run / "run", 3)
    assert [sample["weight"] for sample in told["samples"]] == [0, 1]
    assert told["samples"][0]["left_out"] and told["samples"][0]["share"] == 0
    assert told["loss"] == pytest.approx(told["recorded"]["loss"], rel=1e-5)
    assert main(["explain", f"{run / 'run'}@3"]) == 0
    assert "0 (skip)" in capsys.readouterr().out
    assert main(["explain", f"{run / 'run'}@2"]) == 0
    assert "skipped as a whole (callbacks.skip.steps)" in capsys.readouterr().out


def test_steps_before_and_after_a_change_of_the_batch_size_are_told_with_their_own_samples(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    before = [keys_of(run / "first", step) for step in range(1, 5)]
    copytree(run / "first", tmp_path / "run")
    shards = f"data.shards={run / 'shards'}"
    words = ["--overlay", "smoke", shards, "loop.checkpoint.keep_last=null", "loop.checkpoint.every_steps=1",
             "~callbacks", "~loggers", "loop.validation=null", f"run_dir={tmp_path / 'run'}",
             "loop.duration=5 steps"]  # fmt: skip
    assert main(["run", str(RECIPE), *words, "data.batch_size=1", "--allow", "data.batch_size"]) == 0
    assert "the data resumes at sample 6, after step 3" in " ".join(capsys.readouterr().err.split())
    after = [keys_of(tmp_path / "run", step) for step in range(1, 6)]
    assert after[:3] == before[:3] and after[3] + after[4] == before[3]


def test_the_folder_of_a_run_of_an_earlier_version_is_read_and_resumed(run: Path, tmp_path: Path):
    copytree(run / "first", tmp_path / "run")
    recipe = yaml.safe_load((tmp_path / "run/recipe.yaml").read_text())
    loop = recipe.pop("loop")
    (tmp_path / "run/recipe.yaml").write_text(
        yaml.safe_dump({**recipe, **loop, "ema": None, "run_dir": str(tmp_path / "run")})
    )
    assert keys_of(tmp_path / "run", 2) == keys_of(run / "first", 2)
    assert main(["run", str(tmp_path / "run/recipe.yaml"), f"run_dir={tmp_path / 'run'}", "loop.duration=4 steps"]) == 0
    found = yaml.safe_load((tmp_path / "run/recipe.yaml").read_text())
    assert found["loop"] == {**loop, "duration": "4 steps"} and "ema" not in found


def keys_of(run: Path, step: int) -> list[str]:
    return [sample["key"] for sample in told_of(run, step, "--no-losses")["samples"]]


def test_a_page_says_which_weights_the_losses_are_of(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["explain", f"{run / 'first'}@3"]) == 0
    page = capsys.readouterr().out
    assert "checkpoint step-00000002, which the step started from" in " ".join(page.split())
    assert "recorded: loss" in page and page.count("0000000000000000000000000000000") == 2
    assert main(["explain", f"{run / 'first'}@9"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "it was not reached yet" in page and "not those it started with" in page


def test_machines_get_json_and_nobody_needs_the_model(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["explain", f"{run / 'first'}@1", "--json", "--no-losses"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["step"] == 1 and told["weights"] == "" and told["samples"][0]["loss"] is None


def test_what_is_no_step_of_a_training_gets_a_sentence(run: Path, capsys: pytest.CaptureFixture[str]):
    for name, words in ((f"{run / 'first'}@0", "counted from 1"), (f"{run}@1", "no recipe.yaml")):
        assert main(["explain", name]) == 2
        assert words in capsys.readouterr().err


def test_each_sample_is_told_with_the_rank_that_read_it_in_the_layout_of_its_phase(run: Path, tmp_path: Path):
    """A rank reads consecutive samples of a batch."""
    recipe = yaml.safe_load((run / "first/recipe.yaml").read_text())
    phase, plan = "nemo_vfm.train.phases.Phase", {"_target_": "nemo_vfm.parallel.plan.plan.ParallelPlan"}
    layouts = {"wide": plan | {"shard": 2}, "alone": None, "cut": plan | {"replicate": 2, "tensor": 2}}
    recipe["loop"]["phases"] = {name: {"_target_": phase, "duration": "1 steps", "parallel": layout}
                        for name, layout in layouts.items()}  # fmt: skip
    recipe |= {"data": recipe["data"] | {"batch_size": 4}, "parallel": plan | {"shard": 4}, "run_dir": str(tmp_path)}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    told = [told_of(tmp_path, step, "--no-losses")["samples"] for step in (1, 2, 3)]
    assert [[one["rank"] for one in samples] for samples in told] == [[0, 0, 1, 1], [0, 1, 2, 3], [0, 0, 1, 1]]
    assert [one["place"] for one in told[0]] == [0, 1, 2, 3]


@pytest.mark.parametrize("adapters", [[], ["weights.adapters=lora"]], ids=["all", "lora"])
def test_the_losses_of_a_run_that_starts_from_another_are_those_that_it_had(run: Path, tmp_path: Path, adapters):
    words = ["--overlay", "smoke", f"data.shards={run / 'shards'}", "loop.checkpoint.keep_last=null", "~callbacks",
             "loop.checkpoint.every_steps=1", "~loggers", "loop.validation=null",
             f"run_dir={tmp_path / 'run'}"]  # fmt: skip
    source = ["loop.duration=2 steps", "optimizer.lr=1e-2", f"weights.start_from={run / 'first'}"]
    assert main(["run", str(RECIPE), *words, *source, *adapters]) == 0
    for step in (1, 2):
        told = told_of(tmp_path / "run", step)
        assert told["exact"] and ("first" in told["weights"]) == (step == 1)
        assert told["loss"] == pytest.approx(told["recorded"]["loss"], rel=1e-5)
