"""Tests that a training that a real Slurm interrupts resumes to the losses of an undisturbed one."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.cli import main
from tests.support import tiny_training
from tests.support.ranks import on_ranks
from tests.support.repository import ROOT
from tests.support.slurm import Slurm
from tests.support.slurm_submitted import HERE, Submitted
from tests.support.tiny_training import changes, fate, metrics, trained

STEPS = 8
LAYOUT = ("parallel.shard=2",)  # each process takes seconds to import, in both attempts


@pytest.fixture
def desk(three: Slurm, monkeypatch: pytest.MonkeyPatch, asked_here: None) -> Slurm:
    """The cluster, as the one of this process's environment."""
    monkeypatch.setenv("SLURM_CONF", str(three.conf))
    monkeypatch.chdir(ROOT)
    return three


def training(cluster: Slurm, data: Path, run_dir: Path, *more: str) -> Submitted:
    """A rank on each of two nodes, through `vfm-launch submit`."""
    words = changes(data, run_dir, *LAYOUT, *more, steps=STEPS)
    there = ", ".join(f"{name}: {value}" for name, value in HERE.items())
    where = ("cluster=cpu_slurm", "nodes=2", "cluster.time=0:10:00", "cluster.exclusive=false",
             "cluster.cpus_per_node=2", f"cluster.environment={{{there}}}")  # fmt: skip
    options = ("--overlay", "smoke", "--trust", tiny_training.NAME)
    assert main(["submit", tiny_training.RECIPE, *words, *options, *where]) == 0
    (number,) = json.loads((run_dir / "launch/launch.json").read_text())["jobs"][0]["slurm"]
    return Submitted(cluster, run_dir, number)


def others_go_before(job: Submitted) -> None:
    """Somebody whose jobs go before takes all nodes, for a moment.

    Not by srun: a node that answers seconds after the others have ended makes the whole step one that failed.
    """
    urgent = ("--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=true")
    job.cluster.say("sbatch", "--wait", *urgent)


def is_signalled(job: Submitted) -> None:
    """The ranks get the signal that a time limit is announced by."""
    job.cluster.say("scancel", "--signal=USR1", job.number)


def require_same_losses(job: Submitted, data: Path, alone: Path, end: Callable[[Submitted], None]) -> int:
    """Ask the job to end, see it begun again and finish as a training that nobody disturbs; where it went on."""
    with ThreadPoolExecutor(1) as pool:  # meanwhile: two cores have little to do while Slurm puts things away
        ended = pool.submit(lambda: (end(job), job.ended()))
        on_ranks(1, trained, changes(data, alone, steps=STEPS))
    assert ended.result()[1] == "COMPLETED", job.story()
    assert job.attempts("restart", "status", "kind", "moved") == [
        ("0", "75", "preempted", "yes"), ("1", "0", "ok", "yes"),
    ]  # fmt: skip
    first = int(job.attempts("step")[0][0])
    assert f"resuming at step {first}" in " ".join(job.log().split())
    ours, theirs = metrics(job.run_dir), metrics(alone)
    assert [line["step"] for line in ours] == [line["step"] for line in theirs] == list(range(1, STEPS + 1))
    for our, their in zip(ours, theirs, strict=True):
        assert our == pytest.approx(their, rel=1e-5)
    return first


def test_a_training_that_others_go_before_is_saved_begun_again_and_ends_with_the_losses_of_an_undisturbed_one(
    desk: Slurm, tmp_path: Path
) -> None:
    data = tiny_training.shards(tmp_path / "shards")
    job = training(desk, data, tmp_path / "run", fate("waits", rank=-1, step=3))
    saved = tmp_path / f"run/checkpoints/step-{tiny_training.SAVED:08d}"
    desk.until(saved.is_dir, "a checkpoint", within_s=240)
    first = require_same_losses(job, data, tmp_path / "alone", others_go_before)
    assert tiny_training.SAVED < first < STEPS


@pytest.mark.soak
@pytest.mark.parametrize("end", [others_go_before, is_signalled], ids=["SIGTERM", "SIGUSR1"])
def test_a_signal_during_a_validation_is_heeded_once_it_is_over_and_no_loss_changes(desk: Slurm, tmp_path: Path, end):
    data = tiny_training.shards(tmp_path / "shards")
    job = training(desk, data, tmp_path / "run", "task.waits=true")
    markers = [tmp_path / f"run-notes-validates-{rank}" for rank in range(2)]
    desk.until(lambda: all(marker.exists() for marker in markers), "a validation", within_s=240)
    # The first validation is after step 4; whether somebody asks for the end is looked at after each step.
    assert require_same_losses(job, data, tmp_path / "alone", end) == 5
