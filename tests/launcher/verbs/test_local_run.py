"""Tests that cluster=local gives the run folder and exit status of a cluster, here and at once."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.cli import main
from launcher.state.logs import OnTerminal
from tests.launcher.conftest import LAUNCHER
from tests.support import preloaded
from tests.support.repository import ROOT

TRUST = ("--trust", "tests.support.needing", "--trust", "tests.support.spread")
MINE = """\
import os

from nemo_vfm.core.types.job import Outcome, Run


class Mine:
    def run(self, run: Run) -> Outcome:
        (run.folder / "told").write_text(f"{__file__} {os.environ['COLOUR']}")
        return Outcome("ran")
"""
NEEDY = "_target_: tests.support.needing.Needs\npath: given.txt\n"


@pytest.fixture
def desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory; what is run here is a copy of one process."""
    monkeypatch.setattr("launcher.local_run.subprocess", preloaded.COMMANDS)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return desk


@pytest.mark.slow
def test_it_runs_here_in_the_same_folder_and_its_exit_status_is_passed_on(desk, capfd):
    (desk / "needy.yaml").write_text(NEEDY)
    assert main(["submit", "needy.yaml", "cluster=local", *TRUST]) == 2
    assert "given.txt is not there yet" in capfd.readouterr().err
    (desk / "given.txt").touch()
    assert main(["submit", "needy.yaml", "cluster=local", *TRUST]) == 0
    assert (desk / "runs/needy/ran").exists() and (desk / "runs/needy/launch/launch.json").exists()
    capfd.readouterr()
    assert main(["status", "runs/needy"]) == 0
    assert main(["list"]) == 0
    said = capfd.readouterr().out
    assert "here" in said and "done" in said and "local" in said


@pytest.mark.parametrize(("ends", "begun", "status"), [((0, 3, 1), 3, 3), ((1, 75, 0), 2, 1), ((-9, 0, 2), 3, 137)])
def test_a_sweep_here_ends_with_its_first_bad_status_and_begins_none_once_the_machine_is_wanted(
    desk, monkeypatch, ends, begun, status
):
    commands: list[list[str]] = []

    class Ended:
        def __init__(self, words, **_):
            commands.append(words)
            self.returncode = ends[len(commands) - 1]

        def wait(self):
            return self.returncode

    monkeypatch.setattr("launcher.local_run.subprocess", SimpleNamespace(Popen=Ended))
    monkeypatch.setattr("launcher.local_run.LocalLog", lambda folder: OnTerminal())
    (desk / "needy.yaml").write_text(NEEDY)
    words = ["submit", "needy.yaml", "cluster=local", *TRUST, "--no-code", "--no-paths", "--sweep", "path=a,b,c"]
    assert main(words) == status
    assert [Path(one[one.index("run") + 1]).parent.name for one in commands] == ["path=a", "path=b", "path=c"][:begun]


@pytest.mark.slow
def test_what_only_the_user_can_say_is_said_to_a_run_here(desk):
    (desk / "g.yaml").write_text("_target_: tests.support.parts.Guarded\n")
    words = ["submit", "g.yaml", "cluster=local", "--trust", "tests.support.parts"]
    assert main([*words, "strict=false"]) == 0
    assert main([*words, "--sweep", "strict=true,false"]) == 0
    found = {str(file.parent.name): file.read_text() for file in (desk / "runs").rglob("strict.txt")}
    assert found == {"g": "False\n", "strict=true": "True\n", "strict=false": "False\n"}


@pytest.mark.slow  # launched runs
def test_the_code_is_that_of_the_launch_and_what_the_cluster_sets_reaches_the_run(desk, monkeypatch):
    subprocess.run(["git", "init", "-q"], check=True)
    (desk / "mine_of_the_launch.py").write_text(MINE)
    (desk / "mine.yaml").write_text("_target_: mine_of_the_launch.Mine\n")
    monkeypatch.syspath_prepend(desk)
    monkeypatch.setitem(sys.modules, "mine_of_the_launch", None)  # so that it is away again after the test
    del sys.modules["mine_of_the_launch"]
    words = ["submit", "mine.yaml", "cluster=local", "cluster.environment={COLOUR: red}"]
    assert main([*words, "--trust", "mine_of_the_launch"]) == 0
    assert (desk / "runs/mine/told").read_text() == f"{desk}/runs/mine/launch/code/mine_of_the_launch.py red"


def test_several_nodes_are_not_this_machine(desk, capsys):
    (desk / "needy.yaml").write_text(NEEDY)
    (desk / "given.txt").touch()
    assert main(["submit", "needy.yaml", "cluster=local", "nodes=2", *TRUST]) == 2
    assert "this cluster is your own machine" in capsys.readouterr().err
    assert not (desk / "runs").exists()


@pytest.mark.slow
def test_a_signal_is_handed_on_to_the_run_which_saves_and_ends_with_its_own_status(desk):
    (desk / "long.yaml").write_text("_target_: tests.support.spread.Together\nnum: 1\nsteps: 400\npause_s: 0.1\n")
    words = [sys.executable, "-c", LAUNCHER, "submit", "long.yaml", "cluster=local", *TRUST]
    process = preloaded.Started(words, cwd=desk, err=desk / "said")
    try:
        until = time.monotonic() + 120
        while not (desk / "runs/long/count").is_file():
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 75
    finally:
        process.kill()
    assert json.loads((desk / "runs/long/status.json").read_text())["state"] == "preempted"
