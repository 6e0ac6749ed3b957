"""Tests that help comes at once: nothing heavy is imported before a verb runs."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_vfm.cli import main as cli
from tests.support.recipe_folder import ROOT

HEAVY = ("torch", "numpy", "omegaconf", "yaml", "rich", "pydantic", "lightning", "av", "jinja2")
PROBE = """
import json, sys, io
from nemo_vfm.cli.main import main
out, sys.stdout = sys.stdout, io.StringIO()
try:
    main(json.loads(sys.argv[1]))
except SystemExit:
    pass
out.write(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        [],
        ["--version"],
        ["run", "--help"],
        ["check", "--help"],
        ["list"],
        ["show", "quickstart"],
        ["nonsense"],
    ],
)
def test_help_imports_nothing_heavy(words):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(words)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    loaded = set(json.loads(done.stdout))
    allowed = {"yaml"} if words[:1] in (["list"], ["show"]) else set()
    assert not loaded & set(HEAVY) - allowed


def test_help_names_every_verb_with_a_line(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for verb in ("run", "check", "show", "list", "report"):
        assert any(line.strip().startswith(f"{verb} ") and line.endswith(".") for line in shown.splitlines())


def test_a_verb_is_a_file(tmp_path):
    (tmp_path / "sing.py").write_text('"""Sing a song."""\n')
    (tmp_path / "__init__.py").write_text("")
    assert replace(cli.PROGRAM, folder=tmp_path).verbs() == {"sing": "Sing a song."}


@pytest.mark.parametrize(("words", "said"), [(["rnu"], "did you mean run?"), (["x"], "; there are bench, ")])
def test_an_unknown_verb_is_suggested(capsys, words, said):
    assert cli.main(words) == 2
    assert said in capsys.readouterr().err


def test_the_module_runs_as_the_command_does():
    done = subprocess.run(
        [sys.executable, "-m", "nemo_vfm", "--version"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.startswith("nemo_vfm ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "quickstart", "--model.depth", "12"], "a change is written without dashes: model.depth=12"),
        (["run", "quickstart", "--model.depth=12"], "a change is written without dashes: model.depth=12"),
        (["show", "quickstart", "--seed"], "a change is written without dashes: seed=VALUE"),
        (["run", "quickstart", "--overlays", "smoke"], "did you mean --overlay?"),
        (["list", "--all"], "unrecognized arguments: --all"),
    ],
)
def test_a_change_written_as_an_option_is_told_how_it_is_written_here(capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2 and capsys.readouterr().err.strip().endswith(said)


@pytest.mark.slow
def test_run_says_what_runs_and_where_before_torch_is_imported(tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("_target_: nemo_vfm.workflow.Workflow\nsteps: {train: {_target_: nemo_vfm.train.job.Train}}\n")
    words = [sys.executable, "-X", "importtime", "-m", "nemo_vfm", "run", str(recipe), f"run_dir={tmp_path / 'run'}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    first = next(number for number, line in enumerate(lines) if not line.startswith("import time:"))
    assert lines[first] == f"{recipe} runs in {tmp_path / 'run'}"
    torch = [number for number, line in enumerate(lines) if line.rpartition("|")[2].strip() == "torch"]
    assert torch and first < torch[0]


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="where there is a GPU, torch is asked for its name")
def test_a_run_that_needs_no_torch_does_without_it(tmp_path):
    (tmp_path / "needy.yaml").write_text("_target_: tests.support.needing.Needs\n")
    words = ["run", f"{tmp_path}/needy.yaml", f"run_dir={tmp_path}/run", "--trust", "tests.support.needing"]
    done = subprocess.run([sys.executable, "-c", PROBE, json.dumps(words)], cwd=ROOT, capture_output=True, text=True)
    assert not {"torch", "lightning", "numpy"} & set(json.loads(done.stdout)) and (tmp_path / "run/ran").exists()
    assert json.loads((tmp_path / "run/manifest.json").read_text())["hardware"]["device"].endswith(" CPU")
