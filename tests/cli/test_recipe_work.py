"""Tests what a scheduler is told of a recipe."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.runtime import recipe_work
from nemo_vfm.workflow import Workflow
from tests.support.repository import ROOT


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
    widest = [phase["degrees"] for phase in step["phases"] if phase["ranks"] == step["ranks"]]
    assert step["degrees"] in widest and step["degrees"] != step["phases"][0]["degrees"]


def test_a_workflow_says_its_steps_in_order(capsys):
    found = told(capsys, "quickstart", "run_dir=elsewhere")
    names = [step["name"] for step in found["steps"]]
    assert names.index("curate") < names.index("train") < names.index("sample")
    by_name = {step["name"]: step for step in found["steps"]}
    assert (by_name["curate"]["devices"], by_name["train"]["devices"]) == ("cpu", "gpu")
    assert not by_name["curate"]["ray"] and found["run_dir"] == "elsewhere"


def test_a_step_of_several_needs_what_any_of_them_needs_and_nothing_of_another_step():
    plain = SimpleNamespace()
    workflow = Workflow(steps={"s": Workflow(steps={"inner": plain})})
    for path, device in (("steps.s.steps.inner", "gpu"), ("steps.s", "gpu"), ("steps.s2", "cpu"), ("", "cpu")):
        assert recipe_work._step("s", workflow, [], [path])["devices"] == device
    found = recipe_work._step("s", plain, ["steps.s.a", "steps.s2.b", "steps.other.s.c"], [])
    assert found["missing"] == ["steps.s.a"]


def test_a_step_that_works_through_ray_says_so(capsys):
    found = told(capsys, "quickstart", "steps.curate.executor={_target_: nemo_vfm.curate.execute.ray_executor.Ray}")
    assert [step["name"] for step in found["steps"] if step["ray"]] == ["curate"]


def test_a_wrong_recipe_is_no_json(capsys):
    assert main(["check", "quickstart", "steps.train.nothing=1", "--work"]) == 2
    assert not capsys.readouterr().out.startswith("{")


def test_what_trains_is_told_since_its_environment_depends_on_it(capsys):
    words = ("diffusion/train_small", "data.shards=given-later")
    for engine in ("torch", "megatron"):
        (step,) = told(capsys, *words, f"engine={engine}")["steps"]
        assert (step["engine"], step["plannable"]) == (engine, True)
    found = {step["name"]: (step["engine"], step["plannable"]) for step in told(capsys, "quickstart")["steps"]}
    assert (found["curate"], found["train"], found["sample"]) == (("", False), ("torch", True), ("", False))


def test_what_needs_no_torch_is_told_without_it(tmp_path):
    (tmp_path / "needy.yaml").write_text("_target_: tests.support.needing.Needs\n")
    code = "import sys; from nemo_vfm.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    words = ["check", str(tmp_path / "needy.yaml"), "--work", "--trust", "tests.support.needing"]
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"][0]["engine"] == ""


def test_a_sampling_says_its_ranks_and_degrees(capsys):
    (step,) = told(capsys, "diffusion/sample", "parallel={guidance: 2, context: 2}")["steps"]
    assert (step["ranks"], step["devices"]) == (4, "gpu")
    assert (step["degrees"]["shard"], step["degrees"]["context"]) == (2, 2), "estimates share the weights"
