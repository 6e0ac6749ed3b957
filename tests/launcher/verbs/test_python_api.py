"""Tests that recipes submitted from Python launch as by the command, and how they ended."""

import argparse
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

from launcher import submit
from launcher.cli import main
from launcher.request.request import add_arguments, parse_request
from nemo_vfm.core.errors import UserError
from tests.support import preloaded
from tests.support.repository import ROOT

TRUST = ("tests.support.needing",)
NEEDY = "_target_: tests.support.needing.Needs\npath: given.txt\n"
SMALL = ("cluster.exclusive=false", "cluster.cpus_per_node=2", "cluster.memory_gb=1")


@pytest.fixture
def desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe that needs a file; what is run here is a copy of one process."""
    monkeypatch.setattr("launcher.local_run.subprocess", preloaded.COMMANDS)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (desk / "needy.yaml").write_text(NEEDY)
    return desk


def test_every_argument_asks_for_what_its_option_asks_for(desk, monkeypatch):
    asked = []
    monkeypatch.setattr("launcher.python_api.prepare", lambda request: asked.append(request) or 1 / 0)
    given = {"nodes": 2, "gpus": None, "conf": [desk], "overlays": ["smoke"], "trust": ["a.b"],
             "allow": ["k"], "parts": 3, "allow_host": ["h.example"], "sweep": [], "code": False,
             "paths": False}  # fmt: skip
    assert given.keys() == signature(submit).parameters.keys() - {"recipe", "cluster", "changes"}
    words = ["r.yaml", "cluster=c", "nodes=2", "seed=1", "cluster.qos=q", f"--conf={desk}", "--overlay=smoke",
             "--trust=a.b", "--allow=k", "--parts=3", "--allow-host=h.example", "--no-code", "--no-paths"]  # fmt: skip
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    sized = [*words[:2], "gpus=16", *words[3:]]
    for more, other in (
        ({}, words),
        ({"nodes": None, "gpus": 16}, sized),
        ({"parts": 0, "sweep": ["seed=1,2"]}, [*words, "--parts=0", "--sweep=seed=1,2"]),
    ):
        with pytest.raises(ZeroDivisionError):
            submit("r.yaml", "c", "seed=1", "cluster.qos=q", **given | more)
        assert asked[-1] == parse_request(parser.parse_intermixed_args(other))


@pytest.mark.slow
def test_on_this_machine_it_has_ended_when_it_comes_back(desk):
    assert submit("needy.yaml", "local", trust=TRUST).wait()[0].state == "failed"
    (desk / "given.txt").touch()
    launch = submit(desk / "needy.yaml", "local", trust=TRUST)
    assert [one.state for one in launch.status()] == [one.state for one in launch.wait()] == ["done"]


def test_what_the_preflight_objects_to_is_raised_and_nothing_is_submitted(desk):
    with pytest.raises(UserError, match=r"nothing was submitted\n.*nodes"):
        submit("needy.yaml", "local", nodes=2, trust=TRUST)
    assert not (desk / "runs").exists()


def test_on_slurm_it_is_waited_for_and_known_to_the_command(slurm_here, desk, capsys):
    (desk / "given.txt").touch()
    launch = submit("needy.yaml", "cpu_slurm", *SMALL, trust=TRUST)
    assert [one.state for one in launch.wait(timeout_s=120, poll_s=1)] == ["done"]
    assert main(["status", str(launch.run_dir)]) == 0 and "done" in capsys.readouterr().out


def test_on_slurm_it_is_cancelled_and_a_wait_ends_when_its_time_is_over(slurm_here, desk):
    launch = submit("needy.yaml", "cpu_slurm", *SMALL, "cluster.options={begin: now+1hour}", trust=TRUST)
    with pytest.raises(TimeoutError, match="are still queued or running after 0 s"):
        launch.wait(timeout_s=0)
    launch.cancel()
    assert [one.state for one in launch.wait(timeout_s=60, poll_s=1)] == ["cancelled"]


def test_the_package_itself_imports_nothing_before_it_is_asked():
    text = "import sys; before = set(sys.modules); import launcher; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['launcher']"
