"""Tests workflows and arrays through `vfm-launch` on a real Slurm: which jobs run, and what retry does."""

import json
from pathlib import Path

import pytest

from launcher.cli import main

TRUST = ("--trust", "tests.support.needing")
CLUSTER = ("cluster=cpu_slurm", "cluster.exclusive=false", "cluster.cpus_per_node=2", "cluster.memory_gb=1")
WORKFLOW = """\
# Three steps, of which the middle one needs a file.
_target_: nemo_vfm.workflow.Workflow
steps:
  first: {_target_: tests.support.needing.Needs}
  second: {_target_: tests.support.needing.Needs, path: given.txt}
  third: {_target_: tests.support.needing.Needs}
"""
PARTS = """\
# Eight parts, of which two need a file.
_target_: tests.support.needing.PartsNeed
path: given.txt
which: [2, 5]
"""


def numbers(run: str) -> dict[str, list[str]]:
    """Slurm's numbers of each job of a launch."""
    found = json.loads(Path(run, "launch/launch.json").read_text())
    return {job["name"]: job["slurm"] for job in found["jobs"]}


def attempts(run: str) -> list[tuple[str, str]]:
    """(number, kind) of each end of an attempt."""
    lines = Path(run, "launch/attempts.tsv").read_text().splitlines()
    return [(row[1], row[4]) for row in (line.split("\t") for line in lines)]


def test_a_failing_step_leaves_the_next_unstarted_and_retry_goes_on_from_it(slurm_here, desk, capsys):
    (desk / "wf.yaml").write_text(WORKFLOW)
    assert main(["submit", "wf.yaml", *CLUSTER, *TRUST]) == 0
    first = numbers("runs/wf")
    assert slurm_here.ended(first["second"][0])["JobState"] == "FAILED"
    slurm_here.until_state(first["third"][0], "CANCELLED")
    assert attempts("runs/wf") == [(first["first"][0], "ok"), (first["second"][0], "configuration")]
    assert not (desk / "runs/wf/third").exists()
    capsys.readouterr()
    assert main(["status", "runs/wf"]) == 0
    said = capsys.readouterr().out
    assert "given.txt is not there yet" in said and "the job before it failed" in said

    (desk / "given.txt").touch()
    assert main(["retry", "runs/wf"]) == 0
    again = numbers("runs/wf")
    assert again["first"] == first["first"] and len(again["second"]) == len(again["third"]) == 2
    assert slurm_here.ended(again["third"][1])["JobState"] == "COMPLETED"
    assert (desk / "runs/wf/third/ran").exists()
    capsys.readouterr()
    assert main(["status", "runs/wf", "--json"]) == 0
    assert all(job["done"] for job in json.loads(capsys.readouterr().out)["jobs"])
    assert main(["logs", "runs/wf", "--job", "third"]) == 0
    assert "vfm-launch: ok" in capsys.readouterr().out


def test_a_step_that_waits_is_cancelled_with_those_behind_it(slurm_here, desk, capsys):
    (desk / "wf.yaml").write_text(WORKFLOW)
    assert (
        main(["submit", "wf.yaml", *CLUSTER, *TRUST, "run_dir=runs/cancelled", "cluster.options={begin: now+1hour}"])
        == 0
    )
    assert main(["submit", "wf.yaml", *CLUSTER, *TRUST, "run_dir=runs/cancelled"]) == 2
    assert main(["cancel", "runs/cancelled"]) == 0
    for (number,) in numbers("runs/cancelled").values():
        assert slurm_here.job(number)["JobState"] == "CANCELLED"
    assert not (desk / "runs/cancelled/first").exists()


@pytest.mark.soak
def test_of_an_array_of_eight_with_two_that_fail_retry_runs_just_those(slurm_here, desk, capsys):
    (desk / "eight.yaml").write_text(PARTS)
    assert main(["submit", "eight.yaml", *CLUSTER, *TRUST, "--parts", "8"]) == 0
    first = numbers("runs/eight")
    slurm_here.until_state(first["job"][0], "CANCELLED", within_s=240)
    array = first["parts-0"][0]
    assert sorted(attempts("runs/eight")) == [
        (f"{array}_{task}", "configuration" if task in (2, 5) else "ok") for task in range(8)
    ]
    (desk / "given.txt").touch()
    assert main(["retry", "runs/eight"]) == 0
    again = numbers("runs/eight")
    assert slurm_here.ended(again["job"][1])["JobState"] == "COMPLETED"
    assert sorted(attempts("runs/eight")[8:10]) == [(f"{again['parts-0'][1]}_{task}", "ok") for task in (2, 5)]
    assert [(desk / "runs/eight/notes" / str(task)).read_text() for task in range(8)] == ["x"] * 8
    assert json.loads((desk / "runs/eight/status.json").read_text())["figures"] == {"notes": 8}
