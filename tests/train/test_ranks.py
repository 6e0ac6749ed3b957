"""Tests that a real training over several processes has the numbers and samples of one."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from nemo_vfm.parallel.checkpoint import checkpoint
from tests.support import preloaded, tiny_training
from tests.support.ranks import on_ranks
from tests.support.repository import ROOT
from tests.support.tiny_training import BATCH, changes, command, fate, metrics, notes, trained

pytestmark = pytest.mark.cluster  # several ranks

LIMIT_S = 400.0  # of any run here, on a machine that has other things to do


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_training.shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "run"
    on_ranks(1, trained, changes(data, folder))
    return folder


def require_same(folder: Path, other: Path) -> None:
    """All that is measured, to 1e-5."""
    ours, theirs = metrics(folder), metrics(other)
    assert [line.keys() for line in ours] == [line.keys() for line in theirs]
    for our, their in zip(ours, theirs, strict=True):
        assert our == pytest.approx(their, rel=1e-5)


def require_each_sample_once(folder: Path, other: Path, num_data: int) -> None:
    """A step's samples are those of one process, in as many slices as there are data ranks; an epoch has each once."""
    ours, theirs = notes(folder), notes(other)
    assert ours.keys() == theirs.keys()
    for step, by_rank in ours.items():
        whole = theirs[step][0][0]
        share = BATCH // num_data
        expected = {whole[first : first + share] for first in range(0, BATCH, share)}
        assert {keys for taken in by_rank.values() for keys in taken} == expected
    stream = [key for step in sorted(theirs) for key in theirs[step][0][0]]
    epoch = len(set(stream))
    assert all(len(set(part)) == len(part) for part in (stream[n : n + epoch] for n in range(0, len(stream), epoch)))


LAYOUTS = [
    (["parallel.replicate=2"], 2),
    (["parallel.tensor=2", "parallel.sequence=true"], 1),
    (["parallel.context=2"], 1),
]


@pytest.mark.parametrize(("layout", "num_data"), LAYOUTS, ids=lambda value: str(value))
def test_however_two_processes_share_the_work_the_run_is_that_of_one(
    data: Path, alone: Path, tmp_path: Path, layout: list[str], num_data: int
) -> None:
    folder = tmp_path / "run"
    on_ranks(2, trained, changes(data, folder, *layout))
    require_same(folder, alone)
    require_each_sample_once(folder, alone, num_data)


def test_weights_that_are_shared_in_bfloat16_draw_previews_and_train_nearly_as_in_float32(
    data: Path, alone: Path, tmp_path: Path
) -> None:
    """A GPU's way, where `auto` takes bfloat16; also where nothing multiplies it quickly."""
    folder = tmp_path / "run"
    on_ranks(2, trained, changes(data, folder, "parallel.shard=2", "precision.compute=bf16"))
    assert len(list((folder / "samples").glob("step-*"))) == 2
    ours, theirs = ([line["loss"] for line in metrics(one)] for one in (folder, alone))
    assert ours == pytest.approx(theirs, rel=0.02) and ours != theirs


def require_same_weights(folder: Path, other: Path) -> None:
    """Model, average and optimizer after the last step: to 1e-6 of their size on average, to 1e-4 everywhere.

    Adam divides by the root of squares: where a gradient is nearly zero, the order of a sum decides the update, and a
    processor's order is its own (1.8e-5 with AMX, below 1e-5 without).
    """
    ours, theirs = (checkpoint.open_latest(one / "checkpoints") for one in (folder, other))
    assert ours is not None and theirs is not None and ours.step == theirs.step
    for group, tensors in theirs.groups.items():
        assert ours.groups[group].keys() == tensors.keys()
        for name, tensor in tensors.items():
            scale = float(tensor.float().abs().max()) + 1e-8
            off = (ours.groups[group][name].float() - tensor.float()).abs() / scale
            assert float(off.mean()) <= 1e-6 and float(off.max()) <= 1e-4, f"{group} {name}: {float(off.max()):.1e}"


def torchrun(words: list[str], restarts: int) -> list[str]:
    assert words[1:3] == ["-m", "nemo_vfm"]
    own = ["--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}", "--monitor-interval=0.2"]
    return [sys.executable, "-m", "torch.distributed.run", *own, *words[1:]]


#: torchrun itself, whose processes are copies of one that has imported what takes long.
COPIED = """
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.run import main
from tests.support.preloaded import COMMANDS
SubprocessHandler._popen = lambda self, words, env: COMMANDS.Popen([one for one in words if one != "-u"], env=env)
main()
"""


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_rank_killed_under_torchrun_is_started_again_and_the_run_is_as_if_undisturbed(
    data: Path, alone: Path, tmp_path: Path, times: int
) -> None:
    folder = tmp_path / "run"
    words = torchrun(command(data, folder, "parallel.shard=2", fate("is_killed", rank=1, step=3, times=times)), times)
    done = preloaded.run([sys.executable, "-c", COPIED, *words[3:]], timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "fate-1").read_text() == times * "x" and "resuming at step 2" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr, "torchrun's SIGTERM found rank 0 asking who was lost"
    require_same(folder, alone)
    require_same_weights(folder, alone)
    require_each_sample_once(folder, alone, 2)
    assert all(len(taken) == 1 for step, by_rank in notes(folder).items() if step < 2 for taken in by_rank.values())
    assert json.loads((folder / "status.json").read_text())["state"] == "done"
    names = {path.relative_to(folder).parts[0] for path in folder.rglob("*")} - {".lock"}
    assert names == {path.relative_to(alone).parts[0] for path in alone.rglob("*")} | {
        "recipe.yaml", "manifest.json", "status.json", "started.json", "done.json", "report.html", "fate-1",
    }  # fmt: skip
    assert len(list((folder / "samples").glob("step-*"))) == 2


@pytest.mark.soak  # tests/parallel/fp8 resumes with histories in seconds
def test_a_rank_killed_in_fp8_changes_no_bit(data: Path, tmp_path: Path) -> None:
    """Scales of `delayed` come from the steps before: a history that was lost would show at once."""
    fp8 = ("parallel.shard=2", "precision=fp8", "precision.fp8.recipe=delayed", "precision.fp8.history=4")
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    on_ranks(2, trained, changes(data, whole, *fp8))
    words = torchrun(command(data, folder, *fp8, fate("is_killed", rank=1, step=3)), 1)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0 and (folder / "fate-1").read_text() == "x", done.stderr[-3000:]
    assert "resuming at step 2" in " ".join(done.stderr.split())
    assert metrics(folder) == metrics(whole)
    ours, theirs = (checkpoint.open_latest(one / "checkpoints") for one in (folder, whole))
    assert ours is not None and theirs is not None and ours.groups.keys() == theirs.groups.keys() >= {"fp8"}
    for group, tensors in theirs.groups.items():
        assert all(torch.equal(ours.groups[group][name], tensor) for name, tensor in tensors.items()), group


def by_srun(words: list[str], port: int) -> list[subprocess.Popen[str]]:
    """The same command twice, with what srun says to its tasks."""
    names = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": str(port - 15_000), "SLURM_STEP_ID": "0",
             "SLURM_STEP_NODELIST": "localhost"}  # fmt: skip
    return [
        subprocess.Popen(
            words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **names, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
        )
        for rank in (0, 1)
    ]  # fmt: skip


@pytest.mark.soak
def test_rank_0_killed_under_srun_ends_the_other_with_69_and_the_same_command_goes_on(
    data: Path, alone: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = command(data, folder, "parallel.replicate=2", fate("is_killed", rank=0, step=3))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = 15_000 + taken.getsockname()[1] % 10_000
    first = by_srun(words, port)
    said = [task.communicate(timeout=LIMIT_S) for task in first]
    assert [task.returncode for task in first] == [-signal.SIGKILL, 69], said
    assert "Run the same command again to resume from the last checkpoint" in " ".join(said[1][1].split())
    second = by_srun(words, port)
    said = [task.communicate(timeout=LIMIT_S) for task in second]
    assert [task.returncode for task in second] == [0, 0], said
    assert "resuming at step 2" in " ".join(said[0][1].split())
    require_same(folder, alone)
    require_same_weights(folder, alone)
    require_each_sample_once(folder, alone, 2)


def test_the_command_alone_starts_two_that_a_signal_to_one_ends_at_its_step_and_what_follows_is_as_if_undisturbed(
    data: Path, alone: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = command(data, folder, "parallel.shard=2", fate("terminated", rank=1, step=3))
    done = preloaded.run(words, timeout=LIMIT_S)
    assert done.returncode == 75, done.stderr[-3000:]
    assert "a signal stopped the run at step 4" in " ".join(done.stderr.split())
    said = done.stderr + (folder / "ranks/rank-1.log").read_text()
    assert "Warning" not in said and "WARNING" not in said
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["ranks"]) == ("preempted", 2) and status["step"] >= 1
    assert status["reads_longest"]["rank"] in (0, 1)
    assert max(found.step for found in checkpoint.records(folder / "checkpoints")) == 4
    on_ranks(2, trained, changes(data, folder, "parallel.shard=2"))
    require_same(folder, alone)
    require_same_weights(folder, alone)
    require_each_sample_once(folder, alone, 2)
    assert all(len(taken) == 1 for by_rank in notes(folder).values() for taken in by_rank.values())


@pytest.mark.soak
def test_ctrl_c_ends_a_training_on_two_ranks_with_130_and_it_goes_on(data: Path, alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = command(data, folder, "parallel.shard=2", fate("nothing", pause_s=1.0))
    running = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + LIMIT_S
    while not (folder / "checkpoints/step-00000002").exists() and time.monotonic() < until:
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=LIMIT_S)
    assert (
        running.returncode == 130
        and "interrupted at step" in said
        and "run the same command again to resume in" in said
    )
    on_ranks(2, trained, changes(data, folder, "parallel.shard=2"))
    require_same(folder, alone)
    require_same_weights(folder, alone)


def _wait_for_a_save(folder: Path) -> None:
    """Until a checkpoint is half written; a short while at most, since the run may be at its end."""
    until = time.monotonic() + 3
    while not list((folder / "checkpoints").glob(".step-*.tmp")) and time.monotonic() < until:
        time.sleep(0.001)


@pytest.mark.soak
def test_twenty_kills_of_a_rank_at_any_moment_change_nothing(data: Path, tmp_path: Path) -> None:
    """The clock decides where each kill falls: in a step, between two, or while a checkpoint is written."""
    whole, folder, moments = tmp_path / "whole", tmp_path / "run", random.Random(0)
    few = ("loop.validation.every_steps=1000", "callbacks.preview.every_steps=1000")
    on_ranks(1, trained, changes(data, whole, *few, steps=160), timeout_s=LIMIT_S)
    words = torchrun(command(data, folder, *few, "parallel.shard=2", fate("nothing", pause_s=0.1), steps=160), 30)
    kills, before = 0, -1
    running = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while kills < 20 and running.poll() is None:
        newest = max((int(one.name[5:]) for one in (folder / "checkpoints").glob("step-*")), default=-1)
        pids = tiny_training.pids(folder)
        if newest > before and len(pids) == 2:  # it trains: kills while it imports prove nothing
            if kills % 2:
                _wait_for_a_save(folder)
            else:
                time.sleep(moments.uniform(0, 0.4))
            os.kill(pids[moments.randrange(2)], signal.SIGKILL)
            kills, before = kills + 1, newest
            until = time.monotonic() + LIMIT_S
            while set(tiny_training.pids(folder)) & set(pids) and time.monotonic() < until:
                time.sleep(0.1)
        time.sleep(0.02)
    assert running.wait(LIMIT_S) == 0 and kills >= 15, f"the run was over after {kills} kills; make it longer"
    require_same(folder, whole)
    require_same_weights(folder, whole)
    require_each_sample_once(folder, whole, 2)
