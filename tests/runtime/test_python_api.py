"""Tests the Python functions `compose`, `build` and `run` against what the command line does."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import nemo_vfm
from nemo_vfm import build, compose, run
from nemo_vfm.config import RecipeError
from nemo_vfm.core.errors import NothingKept, RunFolderError, UserError
from nemo_vfm.core.types.job import Outcome
from nemo_vfm.runtime import local_launch
from tests.support import preloaded, tiny_training
from tests.support.recipe_folder import PARTS, ROOT

WORKFLOW = "_target_: nemo_vfm.workflow.Workflow\n"
TINY = {"in_channels": 4, "text_dim": 8, "width": 16, "depth": 1, "heads": 2, "patch": [1, 2, 2]}


def test_a_part_is_built_with_references_counted_from_the_root(kitchen):
    kitchen.write(
        "r.yaml", "_target_: @.Wide\nrate: 3.0\nstage: {_target_: @.Scale, by: '${rate}'}\nchain: ['${stage}']\n"
    )
    cfg = compose("r.yaml", ["rate=4.0"])
    assert build(cfg.stage, trust=[PARTS]).by == build(cfg.chain[0], trust=[PARTS]).by == 4.0
    cfg.rate = 5.0
    assert build(cfg.stage, trust=[PARTS]).by == 5.0 and build(cfg, trust=[PARTS]).rate == 5.0


def test_arguments_of_a_job_are_given_by_name():
    model = build(OmegaConf.create({"_target_": "nemo_vfm.models.dit.DiT", **TINY}))
    assert isinstance(model, torch.nn.Module)
    adam = OmegaConf.create({"_target_": "torch.optim.AdamW", "lr": 0.5})
    assert build(adam, params=model.parameters()).param_groups[0]["lr"] == 0.5
    with pytest.raises(RecipeError, match="AdamW needs params"):
        build(adam)
    with pytest.raises(RecipeError, match="lr is passed to AdamW by the job"):
        build(adam, params=model.parameters(), lr=1.0)


def test_a_part_of_a_recipe_that_is_wrong_elsewhere_can_be_built(kitchen):
    kitchen.write("r.yaml", "_target_: @.Wide\nkount: 3\nout: ???\nstage: {_target_: @.Scale, by: 2.0}\n")
    cfg = compose("r.yaml")
    assert build(cfg.stage, trust=[PARTS]).by == 2.0
    with pytest.raises(RecipeError, match=r"r.yaml:2:1  kount"):
        build(cfg, trust=[PARTS])


@pytest.mark.parametrize(
    ("config", "message"),
    [({"_target_": "os.system", "command": "true"}, "os.system is not trusted"),
     ({"_target_": f"{PARTS}.Scale", "by": 1.0}, "is not trusted"),
     ({"_target_": "nemo_vfm.models.dit.DiT", **TINY, "heads": 3}, "heads"),
     ({"by": 1.0}, "_target_ is missing")],
)  # fmt: skip
def test_what_the_command_line_refuses_is_refused(config, message):
    with pytest.raises(RecipeError, match=message):
        build(OmegaConf.create(config))


def test_a_job_runs_in_its_folder_and_again_has_nothing_to_do(kitchen):
    kitchen.write(
        "r.yaml", "_target_: nemo_vfm.workflow.Workflow\nsteps: {a: {_target_: @.Count, duration: 2 steps}}\n"
    )
    cfg = compose("r.yaml")
    first, second = run(cfg, trust=[PARTS]), run(cfg, trust=[PARTS])
    assert first.figures == {"a/steps": 2} and second.did_nothing
    folder = kitchen.folder / "runs/r"
    assert (folder / "report.html").is_file() and json.loads((folder / "status.json").read_text())["state"] == "done"
    cfg.steps.a.weight = 3.0
    with pytest.raises(RunFolderError, match=r"steps\.a\.weight"):
        run(cfg, trust=[PARTS])
    assert run(cfg, trust=[PARTS], run_dir=kitchen.folder / "other").figures == {"a/steps": 2}


def test_whatever_is_allowed_in_python_reaches_the_run_as_by_its_option(kitchen, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "written"
    steps = f"a: {{_target_: @.Count, duration: 1 steps}}, b: {{_target_: @.Writes, file: {outside}}}"
    kitchen.write("r.yaml", f"{WORKFLOW}steps: {{{steps}}}\n")
    cfg = compose("r.yaml")
    with pytest.raises(RecipeError, match="--allow-write DIR"):
        run(cfg, trust=[PARTS])
    allowed = {"trust": [PARTS], "allow_write": [outside.parent]}
    assert run(cfg, only="a", **allowed).figures and not outside.exists()
    run(cfg, **allowed)
    assert outside.is_file()
    cfg.steps.a.weight = 3.0
    with pytest.raises(RunFolderError, match=r"--allow steps\.a\.weight"):
        run(cfg, **allowed)
    assert not run(cfg, allow=["steps.a.weight"], **allowed).did_nothing


def test_the_run_folder_leaves_the_working_directory_only_as_an_argument(kitchen, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "run"
    cfg = OmegaConf.create({"_target_": f"{PARTS}.Wide", "run_dir": str(outside)})
    with pytest.raises(RecipeError, match="must be below the working directory"):
        run(cfg, trust=[PARTS])
    run(cfg, trust=[PARTS], run_dir=outside)
    assert (outside / "recipe.yaml").is_file()
    assert json.loads((outside / "manifest.json").read_text())["recipe"] is None  # it has no file


def test_errors_are_raised_as_they_are(kitchen, capsys):
    kitchen.write("r.yaml", "_target_: @.Fail\nhow: nothing\n")
    with pytest.raises(NothingKept):
        run(compose("r.yaml"), trust=[PARTS])
    assert json.loads((kitchen.folder / "runs/r/status.json").read_text())["state"] == "nothing_kept"
    with pytest.raises(UserError, match="has no steps"):
        run(compose("r.yaml"), trust=[PARTS], only="x")
    assert capsys.readouterr().out == ""


def test_the_config_cannot_permit_anything(kitchen):
    kitchen.write("r.yaml", f"{WORKFLOW}steps: {{a: {{_target_: @.Wide}}}}\n")
    cfg = compose("r.yaml")
    cfg.trust = [PARTS]
    with pytest.raises(RecipeError, match="is not trusted"):
        run(cfg)


def test_importing_the_package_imports_nothing_until_a_name_is_used():
    code = ("import sys; import nemo_vfm; "
            "before = {'omegaconf', 'torch', 'yaml', 'nemo_vfm.runtime'} & set(sys.modules); nemo_vfm.compose; "
            "print(before, 'omegaconf' in sys.modules)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set() True", done.stderr
    assert not hasattr(nemo_vfm, "compoze") and {"build", "compose", "run"} <= set(dir(nemo_vfm))


@pytest.mark.cluster
def test_a_config_for_two_devices_runs_on_two_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(local_launch, "subprocess", preloaded.COMMANDS)
    data = tiny_training.shards(tmp_path / "shards")
    cfg = compose(
        tiny_training.RECIPE, tiny_training.changes(data, tmp_path / "run", "parallel.shard=2"), overlay=["smoke"]
    )
    cfg.loop.duration = "4 steps"
    outcome = run(cfg, trust=["tests.support"])
    assert outcome.figures and len({file.name[0] for file in Path(f"{tmp_path / 'run'}-notes").iterdir()}) == 2
    cfg.optimizer.lr = 0.5
    with pytest.raises(UserError, match="they gave the reason above"):
        run(cfg, trust=["tests.support"])


@pytest.mark.slow
def test_the_notebook_runs_and_prints_what_it_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, cell in enumerate(json.loads((ROOT / "docs/how-to/python.ipynb").read_text())["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
            shown = "".join(line for output in cell["outputs"] for line in output["text"])
            assert capsys.readouterr().out == shown, f"cell {number}: run docs/how-to/python.ipynb again"


def test_the_python_of_the_page_runs(monkeypatch):
    """All but the quickstart itself, of which only the config that `run` receives is looked at."""
    received = []
    monkeypatch.setattr(
        nemo_vfm, "run", lambda cfg, **_: received.append(cfg) or Outcome("3 steps done", {}), raising=False
    )
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/how-to/python.md").read_text(), re.DOTALL | re.MULTILINE
    )
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"block {number}", "exec"), names)
    assert len(blocks) >= 3 and len(names["model"].blocks) == received[0].steps.train.model.depth == 8
    assert isinstance(names["optimizer"], torch.optim.Optimizer)
