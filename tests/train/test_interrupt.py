"""Tests that one Ctrl-C saves a real training and says how to resume, and that two end it at once."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nemo_vfm.parallel.checkpoint import checkpoint
from tests.support import preloaded, tiny_training
from tests.support.repository import ROOT
from tests.support.tiny_training import RECIPE, changes, command, fate, metrics, notes

LIMIT_S = 300.0  # of any run here, on a machine that has other things to do
PROMISE = "the run ends after this step, with a checkpoint"
#: The launcher, whose run is a copy, too. A copy has a group of its own; a real one must not, for a terminal's Ctrl-C.
LAUNCHER = """
import sys
from types import SimpleNamespace
from launcher import cli, local_run
from tests.support.preloaded import COMMANDS
def in_the_same_group(words, *, env, cwd, stdout, stderr):
    return COMMANDS.Popen(words, env=env, cwd=cwd, stdout=stdout, stderr=stderr)
local_run.subprocess = SimpleNamespace(Popen=in_the_same_group)
sys.exit(cli.main())
"""


class Terminal:
    """A command in a process group of its own, as in a terminal: a Ctrl-C reaches all of the group."""

    def __init__(self, words: Sequence[str], folder: Path, cwd: Path = ROOT) -> None:
        self._said = folder / "said"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = preloaded.Started(words, err=self._said, cwd=cwd, env=environment)

    def until(self, happened: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not happened():
            assert self._process.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.02)

    def press_ctrl_c(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)

    def said(self) -> str:
        return " ".join(self._said.read_text().split())

    def status(self) -> int:
        try:
            return self._process.wait(LIMIT_S)
        finally:
            self._process.kill()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_training.shards(tmp_path_factory.mktemp("data") / "shards")


def run(words: Sequence[str]) -> None:
    done = preloaded.run(words, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-3000:]


def steps_saved(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*"))


def state(folder: Path) -> str:
    return str(json.loads((folder / "status.json").read_text())["state"])


def require_equal(folder: Path, other: Path) -> None:
    """Every metric and every saved byte."""
    assert metrics(folder) == metrics(other)
    ours, theirs = (checkpoint.open_latest(one / "checkpoints") for one in (folder, other))
    assert ours is not None and theirs is not None and ours.step == theirs.step
    for group, tensors in theirs.groups.items():
        assert all(tensor.equal(ours.groups[group][name]) for name, tensor in tensors.items()), group


@pytest.mark.parametrize(
    ("layout", "num_ranks"),
    [
        pytest.param("data.num_workers=1", 1, id="one", marks=pytest.mark.slow),
        pytest.param("parallel.shard=2", 2, id="two", marks=pytest.mark.soak),
    ],
)
def test_ctrl_c_saves_the_step_and_the_same_command_gives_the_numbers_of_a_run_that_was_never_interrupted(
    data: Path, tmp_path: Path, layout: str, num_ranks: int
) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "run"
    run(command(data, whole, layout))
    words = command(data, folder, layout, fate("waits", rank=-1, step=4))
    training = Terminal(words, tmp_path)
    training.until(lambda: all((folder / f"fate-{rank}").exists() for rank in range(num_ranks)))
    training.press_ctrl_c()
    assert training.status() == 130
    said = training.said()
    assert said.count(PROMISE) == 1 and "interrupted at step 5; its checkpoint is in" in said
    assert (
        f"run the same command again to resume in {folder}" in said
        and "Traceback" not in said
        and "Warning" not in said
    )
    assert steps_saved(folder) == [2, 4, 5] and state(folder) == "interrupted"
    run(words)
    require_equal(folder, whole)
    assert all(len(taken) == 1 for by_rank in notes(folder).values() for taken in by_rank.values())


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_the_step(data: Path, tmp_path: Path) -> None:
    training = Terminal(command(data, tmp_path / "run", fate("waits_alone", rank=0)), tmp_path)
    training.until((tmp_path / "run/fate-0").exists)
    training.press_ctrl_c()
    training.until(lambda: PROMISE in training.said())
    training.press_ctrl_c()
    assert training.status() == 130
    assert f"interrupted; run the same command again to resume in {tmp_path / 'run'}" in training.said()
    assert steps_saved(tmp_path / "run") == [2] and state(tmp_path / "run") == "interrupted"


@pytest.mark.slow  # a launched workflow
def test_ctrl_c_in_a_workflow_on_this_machine_saves_the_training_and_begins_nothing_after_it(
    data: Path, tmp_path: Path
) -> None:
    then = "{_target_: tests.support.parts.Count, duration: 1 steps}"
    recipe = ["defaults:", f"  - {{steps.train: recipe:{RECIPE}}}", "_target_: nemo_vfm.workflow.Workflow",
              "run_dir: run", "steps:", "  train: {loop: {duration: 6 steps}}", f"  then: {then}"]  # fmt: skip
    (tmp_path / "recipe.yaml").write_text("\n".join(recipe))
    made = changes(data, tmp_path / "run", fate("waits", rank=0, step=4))
    words = [f"steps.train.{word}" for word in made
             if not word.startswith("run_dir=")]  # fmt: skip
    run_here = [sys.executable, "-c", LAUNCHER, "submit", "recipe.yaml", "cluster=local", "--overlay", "smoke"]
    training = Terminal([*run_here, "--trust", "tests.support", *words], tmp_path, cwd=tmp_path)
    training.until((tmp_path / "run/train/fate-0").exists)
    training.press_ctrl_c()
    os.kill(json.loads((tmp_path / "run/status.json").read_text())["pid"], signal.SIGINT)
    assert training.status() == 130
    said = training.said()
    assert said.count(PROMISE) == 1 and "interrupted at step 5; its checkpoint is in" in said
    assert f"run the same command again to resume in {tmp_path / 'run'}" in said and "Traceback" not in said
    assert 5 in steps_saved(tmp_path / "run/train") and not (tmp_path / "run/then").exists()


@pytest.mark.slow
def test_a_step_that_cannot_save_ends_at_once_with_the_sentence(tmp_path: Path) -> None:
    count = "{_target_: tests.support.parts.Count, duration: 9 steps, pause_s: 600}"
    (tmp_path / "recipe.yaml").write_text(f"_target_: nemo_vfm.workflow.Workflow\nsteps:\n  count: {count}\n")
    words = [sys.executable, "-m", "nemo_vfm", "run", "recipe.yaml", "run_dir=run", "--trust", "tests.support"]
    counting = Terminal(words, tmp_path, cwd=tmp_path)
    counting.until((tmp_path / "run/count/steps/000").exists)
    counting.press_ctrl_c()
    assert counting.status() == 130
    assert (
        "interrupted; run the same command again to resume in run" in counting.said()
        and "Traceback" not in counting.said()
    )
    assert state(tmp_path / "run") == "interrupted"
