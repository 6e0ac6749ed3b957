# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Recipes in; what a scheduler is told of them out."""

import json

import pytest

from nemo_vfm.cli.main import main


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main(["check", *words, "--work"]) == 0
    found: dict = json.loads(capsys.readouterr().out)
    return found


def test_a_training_says_its_ranks_and_degrees_before_its_data_is_given(capsys):
    found = told(capsys, "llm/nemotron4_15b")
    (step,) = found["steps"]
    assert (step["name"], step["ranks"], step["devices"]) == ("", 8, "gpu")
    assert (step["degrees"]["tensor"], step["degrees"]["shard"], step["degrees"]["pipeline"]) == (4, 2, 1)
    assert found["missing"] == step["missing"] == ["data.sources.text.folder"]
    assert found["run_dir"] == "runs/nemotron4_15b" and found["header"].startswith("Nemotron-4 15B")


def test_phases_are_told_in_order_with_their_ranks(capsys):
    (step,) = told(capsys, "llm/nemotron4_340b")["steps"]
    assert [phase["ranks"] for phase in step["phases"]][:3] == [1536, 3072, 6144]
    assert step["ranks"] == max(phase["ranks"] for phase in step["phases"]) > 0
    assert step["degrees"] in [phase["degrees"] for phase in step["phases"]]


def test_a_workflow_says_its_steps_in_order(capsys):
    found = told(capsys, "quickstart", "run_dir=elsewhere")
    names = [step["name"] for step in found["steps"]]
    assert names.index("curate") < names.index("train") < names.index("sample")
    by_name = {step["name"]: step for step in found["steps"]}
    assert (by_name["curate"]["devices"], by_name["train"]["devices"]) == ("cpu", "gpu")
    assert not by_name["curate"]["ray"] and found["run_dir"] == "elsewhere"


def test_a_step_that_works_through_ray_says_so(capsys):
    found = told(capsys, "quickstart", "steps.curate.executor={_target_: nemo_vfm.curate.execute.ray.Ray}")
    assert [step["name"] for step in found["steps"] if step["ray"]] == ["curate"]


def test_a_wrong_recipe_is_no_json(capsys):
    assert main(["check", "quickstart", "steps.train.nothing=1", "--work"]) == 2
    assert not capsys.readouterr().out.startswith("{")
