"""Tests how attempts end on a real Slurm when something happens to them, and what becomes of the job."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from launcher.render.job import SlurmJob
from launcher.request.cluster import NodeCheck
from launcher.request.cluster import Slurm as Cluster
from tests.support.repository import ROOT
from tests.support.slurm import Slurm
from tests.support.slurm_submitted import HERE, Submitted, put

TOY = ("--trust", "tests.support.spread", "--rank-silence", "8", "--rank-timeout", "60")


def submitted(
    cluster: Slurm, run_dir: Path, recipe: str, words: Sequence[str], *, time: str = "10", lead_s: int = 60,
    max_restarts: int = 3, steps: Mapping[str, str | None] | None = None, nodes: int = 2,
) -> Submitted:  # fmt: skip
    """The recipe on so many nodes, two processes on each."""
    where = Cluster(time=time, exclusive=False, environment={**HERE, "PYTHONPATH": str(ROOT)}, step_options=steps or {})
    folder = run_dir / "launch"
    return put(cluster, recipe, SlurmJob(
        name="toy", run_id="0123456789ab", folder=folder, run_dir=run_dir, recipe=folder / "recipe.yaml", workdir=ROOT,
        command=(sys.executable, "-m", "nemo_vfm"), words=tuple(words), nodes=nodes, tasks_per_node=2, gpus_per_node=0,
        cpus_per_task=1, lead_s=lead_s, max_restarts=max_restarts, cluster=where,
    ))  # fmt: skip


def of_bash(
    cluster: Slurm, run_dir: Path, text: str, *, nodes: int = 1, array: int = 0, where: Cluster | None = None,
    max_restarts: int = 3,
) -> Submitted:  # fmt: skip
    """A job whose processes are quick to begin, one a node."""
    folder = run_dir / "launch"
    return put(cluster, "", SlurmJob(
        name="toy", run_id="0123456789ab", folder=folder, run_dir=run_dir, recipe=folder / "recipe.yaml", workdir=ROOT,
        command=("bash", "-c", text), nodes=nodes, tasks_per_node=1, gpus_per_node=0, cpus_per_task=1, array=array,
        task_words=((),) * array, cluster=where or Cluster(exclusive=False), max_restarts=max_restarts,
    ))  # fmt: skip


def toy(**settings: object) -> str:
    """A recipe of a job that counts."""
    lines = [f"{name}: {value}" for name, value in {"num": 4, **settings}.items()]
    return "\n".join(["_target_: tests.support.spread.Together", *lines, ""])


def counted(run_dir: Path) -> list[int]:
    return [int(line) for line in (run_dir / "count").read_text().split()]


def test_a_recipe_that_is_wrong_is_not_begun_again(three: Slurm, tmp_path: Path):
    job = submitted(three, tmp_path / "run", toy(num=3), TOY, nodes=1)
    assert job.ended() == "FAILED" and three.job(job.number)["Restarts"] == "0"
    assert three.job(job.number)["ExitCode"] == "2:0"
    assert job.attempts("status", "kind") == [("2", "configuration")]
    assert "the plan is for 3 devices (shard 3), but there are 2" in job.log()


@pytest.mark.soak  # quick processes are killed in the next test and in test_restart_on_slurm.py
def test_a_process_that_is_killed_lets_the_job_begin_again_once_and_end(three: Slurm, tmp_path: Path):
    job = submitted(three, tmp_path / "run", toy(how="is_killed", who=2), TOY)
    assert job.ended() == "COMPLETED", job.story()
    assert counted(tmp_path / "run") == [0, 1, 2, 3]
    second = f"n{re.findall(r'[0-9]+', job.attempts('nodes')[0][0])[1]}"  # where process 2 of 0 to 3 was
    assert job.attempts("restart", "kind", "blamed") == [("0", "lost_rank", second), ("1", "ok", "")]


def test_a_task_of_an_array_that_is_killed_is_begun_again_without_the_others(three: Slurm, tmp_path: Path):
    fragile = "[[ $SLURM_ARRAY_TASK_ID != 1 || -v SLURM_RESTART_COUNT ]] || kill -9 $$"
    job = of_bash(three, tmp_path / "run", fragile, array=2)
    for task in (0, 1):
        assert three.ended(f"{job.number}_{task}")["JobState"] == "COMPLETED"
    assert sorted(job.attempts("job", "restart", "kind")) == [
        (f"{job.number}_0", "0", "ok"), (f"{job.number}_1", "0", "lost_rank"), (f"{job.number}_1", "1", "ok"),
    ]  # fmt: skip


@pytest.mark.soak
def test_a_job_whose_time_is_up_is_saved_begun_again_and_ends(three: Slurm, tmp_path: Path):
    # What only counts leaves neither checkpoints nor files by which to see that it gets further.
    job = submitted(three, tmp_path / "run", toy(steps=60, pause_s=0.7), TOY, time="1", lead_s=20, max_restarts=9)
    assert job.ended(600) == "COMPLETED", job.story()
    kinds = [kind for (kind,) in job.attempts("kind")]
    assert kinds[-1] == "ok" and len(kinds) >= 2 and set(kinds[:-1]) == {"time_limit"}
    # 138 is the signal before Python listens to it: on a machine so slow that 40 s do not start four processes.
    assert "75" in (statuses := {status for (status,) in job.attempts("status")[:-1]}) and statuses <= {"75", "138"}
    assert counted(tmp_path / "run") == list(range(60))


@pytest.mark.soak
def test_a_node_that_is_gone_takes_no_part_any_more(three: Slurm, tmp_path: Path):
    job = submitted(three, tmp_path / "run", toy(steps=20, pause_s=0.5), TOY)
    three.until((tmp_path / "run/count").is_file, "a step", within_s=120)
    _, second = (f"n{number}" for number in re.findall(r"[0-9]+", three.job(job.number)["NodeList"]))
    three.lose(second)
    try:
        assert job.ended(400) == "COMPLETED", job.story()
    finally:
        three.begin(second)
        three.until(lambda: three.states()[second] == "idle", "the node", within_s=120)
    assert three.job(job.number)["ExcNodeList"] == second
    assert counted(tmp_path / "run") == list(range(20))
    assert job.attempts("restart", "kind", "blamed") == [("0", "node_fault", second), ("1", "ok", "")]


def test_a_node_that_fails_its_check_is_named_and_the_work_is_not_begun(three: Slurm, tmp_path: Path):
    where = Cluster(exclusive=False, node_check=NodeCheck(min_memory_gb=10**6))
    job = of_bash(three, tmp_path / "run", f"touch {tmp_path}/begun", where=where, max_restarts=1)
    assert job.ended(120) == "FAILED", job.story()
    ((kind, blamed, sentence),) = job.attempts("kind", "blamed", "sentence")
    assert kind == "node_fault" and blamed in three.states() and "of memory are free" in sentence
    assert not (tmp_path / "begun").exists()


def test_a_job_that_somebody_cancels_is_not_begun_again(three: Slurm, tmp_path: Path):
    job = of_bash(three, tmp_path / "run", f"touch {tmp_path}/begun; exec sleep 600", nodes=2)
    three.until((tmp_path / "begun").is_file, "the work", within_s=60)
    three.say("scancel", job.number)
    assert job.ended() == "CANCELLED" and three.job(job.number)["Restarts"] == "0"
    three.until((tmp_path / "run/launch/attempts.tsv").is_file, "the script's last line")
    assert job.attempts("kind") == [("interrupted",)]


@pytest.mark.soak
def test_a_crash_that_comes_again_and_again_is_not_tried_for_ever(three: Slurm, tmp_path: Path):
    job = submitted(three, tmp_path / "run", toy(how="crashes", tries=99), TOY, max_restarts=2)
    assert job.ended() == "FAILED", job.story()
    assert job.attempts("kind", "moved") == [("lost_rank", "no")] * 2
    assert "not restarted: 2 attempts in a row made no progress" in job.log()


@pytest.mark.soak
def test_a_process_that_hangs_is_named_and_the_job_begun_again(three: Slurm, tmp_path: Path):
    job = submitted(three, tmp_path / "run", toy(how="is_stopped", who=3), TOY, steps={"wait": "5"})
    assert job.ended() == "COMPLETED", job.story()
    assert counted(tmp_path / "run") == [0, 1, 2, 3]
    (kind, sentence, blamed), _ = job.attempts("kind", "sentence", "blamed")
    assert kind == "hang" and "rank 3 of 4 has sent no heartbeat for 8 s" in sentence
    assert blamed == f"n{re.findall('[0-9]+', job.attempts('nodes')[0][0])[1]}"


@pytest.mark.soak
def test_a_node_that_loses_a_second_process_takes_no_part_any_more(three: Slurm, tmp_path: Path):
    job = submitted(three, tmp_path / "run", toy(how="is_killed", who=2, tries=2), TOY)
    assert job.ended() == "COMPLETED", job.story()
    (first, _, one), (second, _, other), (third, *_) = job.attempts("kind", "nodes", "blamed")
    assert (first, second, third) == ("lost_rank", "lost_rank", "ok")
    assert one == other == three.job(job.number)["ExcNodeList"]


@pytest.mark.soak
def test_the_loss_of_the_node_that_the_script_runs_on_is_noted_by_the_next_attempt(three: Slurm, tmp_path: Path):
    job = submitted(three, tmp_path / "run", toy(steps=20, pause_s=0.5), TOY)
    three.until((tmp_path / "run/count").is_file, "a step", within_s=120)
    first = f"n{re.findall('[0-9]+', three.job(job.number)['NodeList'])[0]}"
    three.lose(first)
    try:
        assert job.ended(400) == "COMPLETED", job.story()
    finally:
        three.begin(first)
        three.until(lambda: three.states()[first] == "idle", "the node", within_s=120)
    assert counted(tmp_path / "run") == list(range(20))
    assert job.attempts("restart", "kind", "blamed") == [("0", "node_fault", first), ("1", "ok", "")]


@pytest.mark.soak
def test_a_job_that_an_administrator_sends_back_goes_on(three: Slurm, tmp_path: Path):
    job = submitted(three, tmp_path / "run", toy(steps=30, pause_s=0.3), TOY)
    three.until((tmp_path / "run/count").is_file, "a step", within_s=120)
    three.say("scontrol", "requeue", job.number)
    assert job.ended() == "COMPLETED", job.story()
    assert job.attempts("restart", "kind") == [("0", "preempted"), ("1", "ok")]
    assert counted(tmp_path / "run") == list(range(30))
