"""Tests that a scheduler's signal gives a checkpoint and status 75, and that a second one does not wait."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from nemo_vfm.core import preemption
from nemo_vfm.core.errors import Interrupted, Preempted
from nemo_vfm.core.preemption import listen_for_signals, numbers
from nemo_vfm.core.types.job import Run
from nemo_vfm.runtime.run_folder import Status
from nemo_vfm.train.state.train_state import TrainState
from nemo_vfm.workflow import Workflow
from tests.support.shown_run import perform
from tests.train.test_job import final, lines, resumed_steps, train


class Asks:
    def __init__(self, step: int, *, times: int = 1, number: signal.Signals = signal.SIGTERM) -> None:
        self.step, self.times, self.number = step, times, number

    def on_step(self, fit: TrainState) -> None:
        for _ in range(self.times if fit.step == self.step else 0):
            os.kill(os.getpid(), self.number)


def state(folder: Path) -> str:
    return str(json.loads((folder / "status.json").read_text())["state"])


@pytest.mark.parametrize(
    ("number", "kind", "urgency"),
    [(signal.SIGTERM, Preempted, 1.0), (signal.SIGUSR1, Preempted, 1.0), (signal.SIGINT, Interrupted, 2.0)],
)
def test_a_block_heeds_signals_also_after_one_inside_it_has_ended(number, kind, urgency) -> None:
    with listen_for_signals():
        with preemption.handle_signals():
            with preemption.handle_signals():
                assert (preemption.pending_signal(), preemption.urgency()) == (None, 0.0)
            try:
                os.kill(os.getpid(), number)
            except KeyboardInterrupt:  # it would end all tests
                pytest.fail("the signal was not heeded")
            assert (preemption.pending_signal(), preemption.urgency()) == (number.name, urgency)
        assert type(preemption.preempted_error(preemption.urgency(), "there")) is kind
    with pytest.raises(KeyboardInterrupt if kind is Interrupted else kind), listen_for_signals():
        os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "status", "called"), [
    (signal.SIGTERM, 75, "preempted"), (signal.SIGUSR1, 75, "preempted"), (signal.SIGINT, 130, "interrupted"),
])  # fmt: skip
def test_a_signal_ends_it_with_a_checkpoint_and_a_status_and_what_follows_is_as_if_undisturbed(
    tmp_path: Path, number: signal.Signals, status: int, called: str, capsys
) -> None:
    train().run(Run(tmp_path / "whole", seed=3))
    folder = tmp_path / "run"
    folder.mkdir()
    with listen_for_signals():
        assert perform(train(callbacks={"ask": Asks(5, number=number)}), Run(folder, seed=3), Status(folder)) == status
    assert state(folder) == called and "run the same command again to resume in" in capsys.readouterr().err
    assert (folder / "checkpoints/step-00000006").is_dir() and len(lines(folder)) == 6
    assert resumed_steps(folder) == [7, 8, 9, 10]
    whole, resumed = final(tmp_path / "whole", 10), final(folder, 10)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_second_signal_does_not_wait_for_a_checkpoint(tmp_path: Path) -> None:
    with listen_for_signals():
        assert perform(train(callbacks={"ask": Asks(5, times=2)}), Run(tmp_path, seed=3), Status(tmp_path)) == 75
    assert state(tmp_path) == "preempted"
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == ["step-00000004"]


def test_a_signal_in_the_last_step_of_a_job_keeps_the_next_job_from_beginning(tmp_path: Path) -> None:
    jobs = {"first": train(callbacks={"ask": Asks(10, number=signal.SIGINT)}), "second": train()}
    with listen_for_signals():
        assert perform(Workflow(steps=jobs), Run(tmp_path, seed=3), Status(tmp_path)) == 130
    assert state(tmp_path) == "interrupted" and not (tmp_path / "second").exists()


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listen_for_signals():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", ["KILL", "SIGINT", "NOSUCH", "STOP"])
def test_signals_that_cannot_be_heeded_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a signal that can stop a run"):
        numbers([name])
