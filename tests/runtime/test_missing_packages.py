"""Tests that a run is refused before it begins where packages are missing, and that a check only says so."""

import sys
from pathlib import Path

import pytest

import nemo_vfm
from launcher.cli import main as launch
from nemo_vfm.cli.main import main
from nemo_vfm.config import compose, needs, trust_list
from nemo_vfm.core.errors import MissingPackage
from nemo_vfm.runtime.checks import missing_packages

WORDS = "{_target_: tests.support.needing.Words}"
WANTS = "_target_: tests.support.needing.Wants"
STEPS = f"""_target_: nemo_vfm.workflow.Workflow
steps:
  first: {{{WANTS}, kind: loose}}
  second: {{{WANTS}, kind: loose, late: {WORDS}}}
  third: {{{WANTS}, words: '${{steps.second.late}}'}}
"""
TRUST = ("--trust", "tests")


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """An empty working directory with a recipe of three steps."""
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(STEPS)
    return tmp_path


@pytest.fixture
def hide(monkeypatch):
    """Makes packages look as if they were not installed."""
    return lambda *names: [monkeypatch.setitem(sys.modules, name, None) for name in names]


def said(capsys) -> str:
    """All that was printed, on one line."""
    shown = capsys.readouterr()
    return " ".join(f"{shown.out} {shown.err}".split())


def test_a_run_names_all_that_is_missing_in_one_line_and_nothing_runs(desk, hide, capsys):
    hide("tokenizers", "jsonschema")
    assert main(["run", "r.yaml", *TRUST]) == 2
    text = said(capsys)
    assert "tokenizers (steps.second.late and 1 more), jsonschema (steps.third)" in text
    assert text.count("pip install") == 1 and "'nemo_vfm[functions,text]'" in text and "constraints.txt" in text
    assert sorted(path.name for path in desk.iterdir()) == ["r.yaml"]


def test_a_check_prints_the_same_line_and_ends_as_before(desk, hide, capsys):
    hide("tokenizers", "jsonschema")
    assert main(["run", "r.yaml", *TRUST]) == 2
    line = next(line for line in capsys.readouterr().err.splitlines() if "pip install" in line)
    assert main(["check", "r.yaml", *TRUST]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "r.yaml: ok" and shown[-2] == line.removeprefix("error: ")


def test_a_step_that_is_done_needs_nothing_and_neither_does_one_that_does_not_run(desk, hide, capsys):
    hide("jsonschema")
    assert main(["run", "r.yaml", "run_dir=part", "--only", "first", *TRUST]) == 0
    whole = ["run", "r.yaml", "steps.third.kind=loose", *TRUST]
    assert main(whole) == 0
    hide("tokenizers", "wandb")
    assert main(whole) == 0 and "Nothing to do" in capsys.readouterr().out
    assert main([*whole, "steps.third.board=b", "--allow", "steps.third.board"]) == 2
    assert "wandb (steps.third), tokenizers (steps.third.words)" in said(capsys)


def test_a_sweep_names_what_any_combination_lacks_before_the_first_runs(desk, hide, capsys):
    hide("tokenizers", "jsonschema", "wandb")
    Path("one.yaml").write_text(f"{WANTS}\nkind: loose\nboard: null\n")
    assert main(["run", "one.yaml", "--sweep", "kind=loose,strict", "board=null,b", *TRUST]) == 2
    assert "'nemo_vfm[functions,wandb]'" in said(capsys) and not Path("runs").exists()


def test_a_run_from_python_is_refused_alike(desk, hide):
    hide("tokenizers", "jsonschema")
    with pytest.raises(MissingPackage, match=r"nemo_vfm\[functions,text\]"):
        nemo_vfm.run(nemo_vfm.compose("r.yaml"), trust=["tests"])


def test_what_only_a_gpu_needs_keeps_no_cpu_from_running(desk, hide, capsys, monkeypatch):
    hide("transformer_engine")
    Path("one.yaml").write_text(f"{WANTS}OnGpu\nkind: loose\n")
    monkeypatch.setattr(missing_packages, "_has_gpu", lambda: True)
    assert main(["run", "one.yaml", *TRUST]) == 2
    assert "--no-build-isolation" in said(capsys)
    monkeypatch.setattr(missing_packages, "_has_gpu", lambda: False)
    assert main(["run", "one.yaml", *TRUST]) == 0


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("board: null", {"jsonschema"}),  # by default
        ("kind: loose", set()),
        ("kind: loose, board: null", set()),
        ("kind: loose, board: b", {"wandb"}),
        (f"kind: loose, words: {WORDS}", {"tokenizers"}),
        (f"kind: loose, late: {WORDS}", {"tokenizers"}),
        (f"kind: loose, listed: [{WORDS}]", {"tokenizers"}),
        ("kind: loose, stores: ['s3://bucket/a', 'gs://bucket/a']", {"gcsfs"}),
    ],
)
def test_a_component_needs_what_its_arguments_and_its_parts_need(desk, arguments, wanted):
    Path("one.yaml").write_text(f"{{{WANTS}, {arguments}}}\n")
    found = needs(compose("one.yaml"), trust_list(["tests"]))
    assert {module for _, need in found for module in need.modules} == wanted


@pytest.mark.slow
def test_a_submission_notes_what_is_missing_here_and_goes_on(desk, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    Path("te.yaml").write_text(f"{WANTS}OnGpu\nkind: loose\n")
    assert launch(["submit", "te.yaml", "cluster=cpu_slurm", "--dry-run", *TRUST]) == 0
    text = said(capsys)
    assert "transformer_engine" in text and "'nemo_vfm[te]'" in text
