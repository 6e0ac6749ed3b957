"""Tests that a launch from a hostile repository imports nothing of it that is not trusted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.plan.recipe_info import work
from launcher.plan.trusted_modules import OWN, job_imports, modules
from launcher.request.request import LaunchRequest
from nemo_vfm.core.errors import UserError
from tests.support.repository import ROOT

TRAP = "from pathlib import Path\n(Path(__file__).resolve().parents[{}] / 'was_run').touch()\n"
MINE = "import beside\n\n\nclass Mine:\n    def run(self, run):\n        ...\n"


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose modules take the places of others; `was_run` beside it tells that one was imported."""
    root = tmp_path / "trap"
    (root / "yaml").mkdir(parents=True)
    (root / "nemo_vfm").mkdir()
    (root / "yaml/__init__.py").write_text(TRAP.format(2))
    (root / "nemo_vfm/__init__.py").write_text(TRAP.format(2))
    for name in ("sitecustomize", "usercustomize", "torch", "json", "argparse", "pathlib", "re"):
        (root / f"{name}.py").write_text(TRAP.format(1))
    (root / "mine.py").write_text(MINE)
    (root / "beside.py").write_text("")
    (root / "r.yaml").write_text("_target_: mine.Mine\n")
    subprocess.run(["git", "init", "-q", root], check=True)
    monkeypatch.chdir(root)
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}.{os.pathsep}{ROOT}")
    return root


def was_run(root: Path) -> bool:
    return (root.parent / "was_run").exists()


@pytest.mark.slow  # launched runs
@pytest.mark.parametrize("command", [
    pytest.param(["-m", "launcher"], marks=pytest.mark.soak), ["-c", "from launcher.__main__ import main; main()"],
], ids=["module", "program"])  # fmt: skip
def test_a_dry_run_in_a_strangers_repository_imports_nothing_of_it(trap, command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, *command, "submit", "synthetic/shapes", "cluster=dgx_h100", "--dry-run", "--print-script"]
    if command[0] == "-c":
        words[1:1] = ["-P"]  # as the installed program has it
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "#!/bin/bash" in done.stdout, done.stderr
    assert "nothing in it is imported" in done.stderr and "add --trust nemo_vfm" in done.stderr
    assert "PYTHONPATH" not in done.stdout
    assert not was_run(trap)


def test_what_is_trusted_is_imported_from_the_repository_and_what_is_beside_it_and_nothing_else(trap):
    asked = LaunchRequest(recipe="r.yaml", cluster="local", trust=("mine",))
    assert work(asked, trap).steps[0].kind == "mine.Mine"
    assert not was_run(trap)
    with pytest.raises(UserError, match="not trusted"):
        work(LaunchRequest(recipe="r.yaml", cluster="local"), trap)


def test_a_job_imports_from_the_copy_where_something_of_it_is_trusted_or_it_is_ours(trap):
    assert not job_imports(modules((), trap), trap) and job_imports(modules(("mine.Mine",), trap), trap)
    assert not job_imports(modules(("absent",), trap), trap)
    assert job_imports(modules((), OWN), OWN)


def test_an_installed_package_goes_before_one_of_the_same_name_in_the_repository_and_this_is_known(trap):
    found = modules(("torch", "mine", "nemo_vfm"), trap)
    assert set(found.trusted) == {"mine", "nemo_vfm"} and "torch" in found.passed_over
    assert found.named["nemo_vfm"] == str(trap)


def test_no_relative_entry_of_a_path_and_nothing_of_the_repository_is_searched(trap, monkeypatch):
    inside = str(trap / "vendored")
    monkeypatch.setattr(sys, "path", ["", ".", str(trap), inside, *sys.path])
    assert not {"", ".", str(trap), inside} & set(modules((), trap).path)
    assert not {"", ".", str(trap)} & set(modules((), None).path)
