"""Tests that every verb refuses a launch folder that a stranger wrote."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main
from tests.support.fake_queue import FakeQueue

WORDS = {"cluster": "cpu_slurm", "nodes": 1, "trust": [], "allow": [], "code": False, "parts": 0}
VERBS = (["status", "runs/a"], ["status", "runs/a", "--json"], ["logs", "runs/a"], ["diff", "runs/a", "runs/a"],
         ["cancel", "runs/a"], ["retry", "runs/a"], ["rerun", "runs/a", "run_dir=runs/b"])  # fmt: skip
JOB: dict[str, Any] = {
    "name": "job", "script": "job.sh", "step": "", "phase": "", "waits_for": "", "nodes": 1, "tasks_per_node": 1,
    "gpus_per_node": 0, "array": 0, "kind": "k", "degrees": {}, "slurm": ["101"],
}  # fmt: skip


@pytest.fixture
def queue(queue: FakeQueue) -> FakeQueue:
    """With the folder of a launch beside it."""
    Path("runs/a/launch/logs").mkdir(parents=True)
    return queue


def hostile(job: dict[str, Any] | None = None, **values: Any) -> None:
    """A launch of one job, in which some values are others."""
    whole = {
        "schema": "nemo_vfm.launch/1", "id": "abc", "created": "2026-01-01T00:00:00+00:00", "name": "a", "title": "t",
        "recipe": "shapes", "run_dir": "x", "workdir": str(Path.cwd()), "runs": [], "jobs": [{**JOB, **(job or {})}],
        "words": WORDS,
        "cluster": {"_target_": "launcher.request.cluster.Slurm", "gpus_per_node": 0, "cpus_per_node": 4},
        "code": {"sha256": "", "commit": None, "files": 0}, **values,
    }  # fmt: skip
    files = {"launch.json": json.dumps(whole), "job.sh": "#!/bin/bash\n", "code.sha256": "", "packages.txt": "",
             "shapes.yaml": "# x\n_target_: nemo_vfm.workflow.Workflow\nsteps: {s: 'recipe:quickstart'}\n"}  # fmt: skip
    for name, text in files.items():
        Path("runs/a/launch", name).write_text(text)


@pytest.mark.parametrize("job", [
    {"script": "../../../evil.sh"}, {"script": "/bin/ls"}, {"script": "--wrap=id"}, {"slurm": ["--user=root"]},
    {"slurm": ["*"]}, {"slurm": [101]}, {"array": 10**9}, {"array": "x"}, {"step": "../../.."}, {"name": "\x1b[2J"},
    {"degrees": {"a": []}}, {"nodes": None},
])  # fmt: skip
def test_a_job_that_no_launcher_writes_is_refused_by_every_verb_and_slurm_is_asked_for_nothing(queue, capsys, job):
    hostile(job)
    for words in VERBS:
        assert main(words) == 2
        assert "is not what a launcher writes: look at jobs.0." in capsys.readouterr().err
    assert queue.asked("sbatch") == queue.asked("scancel") == []


@pytest.mark.parametrize("values", [
    {"jobs": []}, {"jobs": None}, {"jobs": "x"}, {"words": None}, {"cluster": {}}, {"recipe": "../../etc/passwd"},
    {"runs": ["../x"]}, {"id": "\x1b[31m"}, {"created": 5}, {"code": None}, {"workdir": 3},
    {"cluster": {"_target_": "launcher.request.cluster.Slurm", "max_at_once": "4 --wrap=id"}},
    {"words": {**WORDS, "profile": "x"}},
    {"words": {**WORDS, "profile": {"ranks": ["0 --x"], "begin_s": 1, "end_s": 2}}},
])  # fmt: skip
def test_a_launch_that_no_launcher_writes_is_refused_by_every_verb_and_the_others_are_listed(queue, capsys, values):
    hostile(**values)
    for words in VERBS:
        assert main(words) == 2
        said = capsys.readouterr()
        assert "is not what a launcher writes" in said.err and "\x1b" not in said.err
    assert main(["list"]) == 0 and "no launches" in capsys.readouterr().out


def test_a_folder_grants_no_trust_by_itself(queue, capsys):
    words = {"cluster": "c", "nodes": 1, "trust": ["evil"], "allow": [], "code": False, "parts": 0}
    hostile(words=words)
    assert main(VERBS[-1]) == 2
    assert "was launched with --trust evil" in capsys.readouterr().err
    hostile(cluster={"_target_": "launcher.request.cluster.Local", "environment": {"LD_PRELOAD": "/tmp/x.so"}})
    assert main(VERBS[-1]) == 2
    assert "add --trust cluster" in capsys.readouterr().err


def test_the_launch_of_another_user_is_not_tried_again(queue, capsys, monkeypatch):
    hostile()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert main(["retry", "runs/a"]) == 2
    assert "belongs to another user" in capsys.readouterr().err and queue.asked("sbatch") == []


def test_a_fifo_is_not_waited_for_and_a_huge_log_is_read_from_its_end(queue, capsys):
    hostile()
    os.mkfifo("runs/a/launch/logs/b-101.out")
    with Path("runs/a/launch/logs/a-101.out").open("wb") as file:
        file.truncate(8 << 30)  # a hole, which takes no disk
        file.seek(0, 2)
        file.write(b"\nlast\n")
    assert main(["logs", "runs/a", "--lines", "1"]) == 0
    assert capsys.readouterr().out == "last\n"
    Path("runs/a/launch/launch.json").unlink()
    os.mkfifo("runs/a/launch/launch.json")
    assert main(["status", "runs/a"]) == 2
    assert "not a regular file" in capsys.readouterr().err


def test_a_working_directory_that_is_gone_is_said(queue, capsys):
    hostile(workdir="/nonexistent/desk")
    assert main(["retry", "runs/a"]) == 2
    assert "cannot be run in /nonexistent/desk" in capsys.readouterr().err
