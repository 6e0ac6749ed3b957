"""Tests each run of a sweep on a real Slurm, its attempts and its figures."""

import json
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.slurm import slurm
from nemo_vfm.cli.main import main as nemo_vfm
from tests.support.slurm import Slurm

TRUST = ("--trust", "tests.support.needing")
CLUSTER = ("cluster=cpu_slurm", "cluster.exclusive=false", "cluster.cpus_per_node=2", "cluster.memory_gb=1")


@pytest.mark.soak
def test_of_a_sweep_the_runs_that_failed_are_tried_again_and_the_table_has_all(slurm_here: Slurm, desk: Path, capsys):
    Path("needy.yaml").write_text("_target_: tests.support.needing.Needs\n")
    words = ["submit", "needy.yaml", *CLUSTER, *TRUST, "--sweep", "path=given.txt,null", "seed=0,1"]
    assert main(words) == 0
    launch = Path("runs/needy-sweep/launch")
    (array,) = json.loads((launch / "launch.json").read_text())["jobs"][0]["slurm"]
    kinds = {f"{array}_{n}": kind for n, kind in enumerate(["configuration"] * 2 + ["ok"] * 2)}
    until_over(slurm_here, array)
    assert dict(ends(launch)) == kinds
    assert main(words) == 0 and main(["cancel", "runs/needy-sweep"]) == 0  # the same words again go on
    # Tasks that were cancelled while they ran are still ending, and nothing is tried again beside them.
    until_over(slurm_here, json.loads((launch / "launch.json").read_text())["jobs"][0]["slurm"][-1])

    Path("given.txt").touch()
    assert main(["retry", "runs/needy-sweep"]) == 0
    again = json.loads((launch / "launch.json").read_text())["jobs"][0]["slurm"][-1]
    until_over(slurm_here, again)
    assert [end for end in ends(launch) if end[0].startswith(f"{again}_")] == [(f"{again}_{n}", "ok") for n in (0, 1)]
    capsys.readouterr()
    assert main(["status", "runs/needy-sweep"]) == 0
    assert "4 of 4 tasks are done" in capsys.readouterr().out
    assert nemo_vfm(["report", "runs/needy-sweep"]) == 0
    rows = json.loads(Path("runs/needy-sweep/sweep.json").read_text())["points"]
    assert [row["state"] for row in rows] == ["done"] * 4
    assert all((Path("runs/needy-sweep") / row["name"] / "ran").exists() for row in rows)


def until_over(cluster: Slurm, array: str) -> None:
    cluster.until(
        lambda: not any(task.waits_or_runs for task in slurm.squeue([array]).values()), f"end of {array}", 240
    )


def ends(launch: Path) -> list[tuple[str, str]]:
    """(number, kind) of each end of an attempt, in order of the numbers."""
    rows = [line.split("\t") for line in (launch / "attempts.tsv").read_text().splitlines()]
    return sorted((row[1], row[4]) for row in rows)
