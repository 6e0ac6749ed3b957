"""Tests what a heartbeat says of the steps done."""

from collections.abc import Iterator

import pytest

from nemo_vfm.core import progress


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Friend:
    def facts(self) -> dict[str, object]:
        return {"ranks": 2}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    progress.forget()
    monkeypatch.setattr(progress, "time", clock)
    yield clock
    progress.forget()
    progress.ask(None)


def test_the_time_of_a_step_is_the_mean_of_the_last_twenty(clock):
    progress.step(1, 100)
    assert progress.current() == {"step": 1, "total_steps": 100}  # one end says nothing of a length
    for number in range(2, 60):
        clock.now_s += 10.0 if number < 39 else 0.5
        progress.step(number, 100)
    assert progress.current() == {"step": 59, "total_steps": 100, "step_s": 0.5}


def test_another_job_begins_with_nothing(clock):
    progress.step(3, None)
    progress.forget()
    assert progress.current() == {}


def test_who_is_asked_adds_what_it_knows_until_nobody_is(clock):
    progress.step(3, None)
    progress.ask(Friend().facts)
    assert progress.current() == {"step": 3, "total_steps": None, "ranks": 2}
    progress.ask(None)
    assert "ranks" not in progress.current()
