"""Tests that whatever happens to one of several ranks, all end in time, name it, and can resume."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import preloaded
from tests.support.processes import all_end, is_gone
from tests.support.ranks import free_port
from tests.support.repository import ROOT

pytestmark = pytest.mark.cluster  # several ranks

LIMIT_S = 240.0  # of any run here, on a machine that has other things to do
WORDS = ["--trust", "tests.support.spread", "--rank-silence", "8", "--rank-timeout", "60"]


def command(folder: Path, *words: str, job: str = "Together") -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "toy.yaml").write_text(f"_target_: tests.support.spread.{job}\n")
    own = [sys.executable, "-m", "nemo_vfm", "run", str(folder / "toy.yaml"), f"run_dir={folder / 'run'}"]
    return [*own, *WORDS, *words]


def start(
    folder: Path, *words: str, job: str = "Together", env: Mapping[str, str] | None = None
) -> tuple[preloaded.Started, Path]:
    """It, and the file of what it says."""
    written = command(folder, *words, job=job)
    said = folder / f"said-{len(list(folder.glob('said-*')))}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return preloaded.Started(written, env=environment, err=said), said


def ended(running: tuple[preloaded.Started, Path]) -> tuple[int, str]:
    return running[0].wait(LIMIT_S), " ".join(running[1].read_text().split())


def counted(folder: Path) -> list[int]:
    """The steps that were taken, in order."""
    return [int(line) for line in (folder / "run/count").read_text().split()]


def until(true_when: object, what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not true_when():  # type: ignore[operator]
        assert time.monotonic() < end, f"timed out waiting for {what}"
        time.sleep(0.05)


def pids(folder: Path) -> list[int]:
    """Of both ranks and of what they started."""
    return [int(pid) for rank in (0, 1) for pid in (folder / f"run/pids-{rank}").read_text().split()]


def test_a_rank_that_is_killed_is_named(tmp_path: Path):
    status, said = ended(start(tmp_path, "how=is_killed"))
    assert status == 69
    assert "rank 1 of 2 died" in said and "rank 1 of 2 was killed by SIGKILL" in said
    assert "Run the same command again to resume from the last checkpoint" in said
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "failed"


@pytest.mark.soak  # 44 s: silence must be told from slowness
def test_a_rank_that_is_stopped_is_named_and_nobody_is_left(tmp_path: Path):
    status, said = ended(start(tmp_path, "how=is_stopped"))
    assert status == 69
    assert "rank 1 of 2 has sent no heartbeat for 8 s (the last: it" in said
    seen = [int((tmp_path / f"run/seen-{rank}").read_text().split()[0]) for rank in (0, 1)]
    assert all(is_gone(pid) for pid in seen)


def test_a_signal_ends_all_at_one_step_with_75_and_the_same_command_goes_on(tmp_path: Path):
    words = ("steps=60", "pause_s=0.1")
    running = start(tmp_path, *words)
    until((tmp_path / "run/count").exists, "the first step")
    running[0].send_signal(signal.SIGUSR1)
    status, said = ended(running)
    assert status == 75 and "preempted at step" in said and "run the same command again to resume in" in said
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "preempted"
    assert 0 < len(counted(tmp_path)) < 60
    status, said = ended(start(tmp_path, *words))
    assert status == 0 and counted(tmp_path) == list(range(60))


def test_a_launcher_that_is_killed_takes_its_ranks_and_their_children_along(tmp_path: Path):
    # Not by a copy of another process: the kernel ends a rank with the process that started it.
    running = subprocess.Popen(command(tmp_path, job="Child"), cwd=ROOT, stderr=subprocess.DEVNULL)
    until(lambda: all((tmp_path / f"run/pids-{rank}").exists() for rank in (0, 1)), "both ranks")
    running.kill()
    running.wait(LIMIT_S)
    assert all_end(pids(tmp_path), LIMIT_S)


def test_ctrl_c_ends_all_with_130_and_nobody_is_left(tmp_path: Path):
    running = start(tmp_path, job="Child")
    until(lambda: all((tmp_path / f"run/pids-{rank}").exists() for rank in (0, 1)), "both ranks")
    running[0].send_signal(signal.SIGINT)
    status, said = ended(running)
    assert status == 130 and "interrupted; run the same command again to resume in" in said
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "interrupted"
    assert all_end(pids(tmp_path), LIMIT_S)


def as_rank(rank: int, count: int, port: int, **more: str) -> dict[str, str]:
    """What torchrun or an MPI wrapper says to a process."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {**{name: str(value) for name, value in names.items()}, **more}


def test_another_number_of_processes_than_the_plans_is_refused_with_both_numbers(tmp_path: Path):
    status, said = ended(start(tmp_path, env=as_rank(0, 3, free_port())))
    assert status == 2 and "the plan is for 2 devices (shard 2), but there are 3" in said
    assert not (tmp_path / "run").exists()


def test_a_port_that_is_taken_is_said(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, said = ended(start(tmp_path, env=as_rank(0, 2, port)))
    assert status == 2 and f"the port of 127.0.0.1:{port} is in use" in said and "set MASTER_PORT" in said


def test_ranks_with_different_recipes_do_not_begin(tmp_path: Path):
    port = free_port()
    both = [start(tmp_path, f"steps={4 + rank}", env=as_rank(rank, 2, port)) for rank in (0, 1)]
    for status, said in map(ended, both):
        assert (
            status == 2 and "rank 1 of 2 was given a different recipe than rank 0" in said and "Nothing was run" in said
        )
    assert not (tmp_path / "run/count").exists()


CASES = {
    "exits": (69, "rank 1 of 2 ended with status 7"),
    "crashes": (69, "rank 1 of 2 was killed by SIGSEGV"),
    "raises": (1, "rank 1 of 2 ended: RuntimeError: this rank has a bad day"),
    "raises_for_the_user": (2, "rank 1 of 2 ended: UserError: this rank's disk is full; make room"),
    "sleeps_in_c": (69, "rank 1 of 2 has sent no heartbeat for 8 s (the last: it"),
    "waits_alone": (69, "rank 1 of 2 prepares step 2 for so long that the others, which wait for it, gave up"),
}


@pytest.mark.soak
@pytest.mark.parametrize("how", CASES)
def test_whatever_comes_over_a_rank_is_told_of_it_by_number(tmp_path: Path, how: str):
    began = time.monotonic()
    words = ["--rank-timeout", "30"] if how == "waits_alone" else []
    status, said = ended(start(tmp_path, f"how={how}", *words))
    expected, sentence = CASES[how]
    assert status == expected and sentence in said
    assert time.monotonic() - began < LIMIT_S
    assert counted(tmp_path) == [0, 1]


@pytest.mark.soak
def test_a_rank_five_times_slower_than_the_others_is_waited_for(tmp_path: Path):
    status, _ = ended(start(tmp_path, "how=straggles", "pause_s=0.5", "steps=6"))
    assert status == 0 and counted(tmp_path) == list(range(6))


@pytest.mark.soak
@pytest.mark.parametrize("who", [0, 1])
def test_restarts_are_counted_and_go_on(tmp_path: Path, who: int):
    status, said = ended(start(tmp_path, "how=is_killed", f"who={who}", "tries=2", "--max-restarts", "2"))
    assert status == 0 and "restarting all 2 (2 of 2)" in said
    assert counted(tmp_path) == [0, 1, 2, 3]
