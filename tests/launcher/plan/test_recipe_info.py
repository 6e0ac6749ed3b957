"""Tests what nemo-vfm, in a process of its own, tells the launcher of a recipe."""

import json
from pathlib import Path

import pytest

from launcher.plan import recipe_info
from launcher.plan.recipe_info import work
from launcher.plan.trusted_modules import Modules
from launcher.request.request import LaunchRequest
from nemo_vfm.core.errors import UserError


def test_a_question_is_asked_without_our_rank_and_with_all_that_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "shows.py"
    program.write_text("import json, os\nprint(json.dumps(dict(os.environ)))\n")
    monkeypatch.setattr(recipe_info.isolated, "__file__", str(program))
    own = {"RANKING": "/data", "WORLD_SIZES": "3", "PMID_FILE": "pubmed.tsv", "MASTER_ADDR": "10.0.0.1"}
    ours = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "SLURM_PROCID": "3",
            "PMI_RANK": "3", "PMIX_RANK": "3", "TORCHELASTIC_RUN_ID": "x"}  # fmt: skip
    for name, value in {**own, **ours}.items():
        monkeypatch.setenv(name, value)
    found = json.loads(recipe_info._output_of(["check"], Modules(path=(), named={}, passed_over={})).text)
    assert not ours.keys() & found.keys()
    assert {name: found.get(name) for name in own} == {**own, "MASTER_ADDR": None}  # where our rank meets others


@pytest.mark.slow
def test_neither_a_strangers_module_in_the_working_directory_nor_a_job_around_us_reaches_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("yaml.py").write_text("from pathlib import Path\nPath('was_run').touch()\n")
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}.items():
        monkeypatch.setenv(name, value)
    found = work(LaunchRequest(recipe="synthetic/shapes", cluster="local"))
    assert [(step.name, step.ranks, step.on_gpu) for step in found.steps] == [("", 1, False)]
    assert found.name == "shapes" and found.header.startswith("Generate a dozen short videos")
    assert not Path("was_run").exists()


def test_the_classes_of_the_working_tree_are_found_where_it_is_the_code_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/mine.py").write_text("class Mine:\n    def run(self, run):\n        ...\n")
    Path("r.yaml").write_text("_target_: mine.Mine\n")
    asked = LaunchRequest(recipe="r.yaml", cluster="local", trust=("mine",))
    assert work(asked, tmp_path / "code").steps[0].kind == "mine.Mine"
    with pytest.raises(UserError, match=r"package mine is not installed"):
        work(asked)
