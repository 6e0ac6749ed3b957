"""Tests which progress lines are written without a terminal, and when, by a fake clock."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from nemo_vfm.core import log, progress
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.progress import ProgressLines, duration, every_s, ticking


class Log:
    """Lines, each with the time that it came at."""

    def __init__(self) -> None:
        self.now_s, self.lines = 0.0, []

    def of(self, title, total, completed=0, **more):
        return ProgressLines(title, total, completed, write=lambda line: self.lines.append((self.now_s, line)),
                             clock=lambda: self.now_s, **more)  # fmt: skip


def test_a_line_comes_every_ten_seconds_with_what_was_done_since_and_one_at_the_end():
    written = Log()
    lines = written.of("training", 100, 40, unit="steps")
    for step in range(60):
        written.now_s += 0.5 if step < 40 else 0.25
        lines.advance(note=f"loss {100 - step}")
    lines.close()
    assert written.lines == [
        (10.0, "training: 60/100 steps, loss 81, 2.00 steps/s, 20 s left"),
        (20.0, "training: 80/100 steps, loss 61, 2.00 steps/s, 10 s left"),
        (25.0, "training: 100/100 steps, loss 41, 4.00 steps/s, 0 s left"),
    ]


def test_slow_work_says_how_long_each_takes_and_what_has_no_end_says_none():
    written = Log()
    lines = written.of("sampling", None, unit="videos")
    for _ in range(2):
        written.now_s += 40
        lines.advance()
    lines.close()
    assert written.lines == [(40.0, "sampling: 1 videos, 40.0 s each"), (80.0, "sampling: 2 videos, 40.0 s each")]


def test_a_line_without_a_change_says_why_where_somebody_knows():
    written = Log()
    lines = written.of("captions", 12)
    try:
        progress.set_wait_reason("the service at http://x cannot be reached")
        written.now_s = 10
        lines.tick()
        progress.set_wait_reason("")
        written.now_s = 20
        lines.tick()
    finally:
        progress.forget()
    assert [line for _, line in written.lines] == [
        "captions: 0/12, no change for 10 s: the service at http://x cannot be reached",
        "captions: 0/12, no change for 20 s",
    ]


def test_a_run_that_ends_by_the_clock_says_the_time_left_and_no_seconds_a_second():
    written = Log()
    lines = written.of("training", 90, unit="s", every_s=0)
    written.now_s += 30
    lines.advance(30, "step 7, loss 1.0000")
    assert written.lines == [(30.0, "training: 30/90 s, step 7, loss 1.0000, 1 min 00 s left")]


def test_a_batch_that_takes_long_has_a_line_every_ten_seconds_and_its_speed_stays_that_of_the_whole_batch():
    written = Log()
    lines = written.of("sampling", 8, unit="videos")
    written.now_s = 9.5
    assert lines.tick() == 0.5 and not written.lines
    written.now_s = 10
    assert lines.tick() == 10
    written.now_s = 16
    lines.advance(4)
    assert lines.tick() == 4
    for written.now_s in (20, 30):
        lines.tick()
    written.now_s = 32
    lines.advance(4)
    lines.close()
    assert written.lines == [
        (10, "sampling: 0/8 videos, no change for 10 s"),
        (20, "sampling: 4/8 videos, 0.25 videos/s, 16 s left"),
        (30, "sampling: 4/8 videos, no change for 14 s"),
        (32, "sampling: 8/8 videos, 0.25 videos/s, 0 s left"),
    ]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_rank_0_writes_lines_while_one_batch_keeps_it_busy(rank, monkeypatch):
    lines, come = [], threading.Event()

    def write(_, line):
        lines.append(line)
        if len(lines) == 3:
            come.set()

    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("NEMO_VFM_PROGRESS_S", "0.001")
    monkeypatch.setattr(log, "write_stamped", write)
    monkeypatch.setattr(log, "console", lambda: SimpleNamespace(is_terminal=False))
    with log.bar("sampling", 8, unit="videos"):
        assert has_thread() == (rank == "0")
        assert rank == "1" or come.wait(60), "no line came"
    assert not has_thread() and all("0/8 videos" in line for line in lines)


def has_thread():
    return any(thread.name == "progress lines" for thread in threading.enumerate())


def test_a_log_that_is_closed_ends_no_work(monkeypatch):
    ended = threading.Event()

    def write(line):
        ended.set()
        raise OSError("no space left")

    lines = ProgressLines("sampling", 8, write=write, every_s=0.001)
    with ticking(lines):
        assert ended.wait(60)


@pytest.mark.parametrize(("seconds", "said"), [(0, "0 s"), (61.2, "1 min 02 s"), (7500, "2 h 05 min"), (-3, "0 s")])
def test_times_are_said_as_people_say_them(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize("text", ["soon", "-1", "nan", ""])
def test_an_interval_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="NEMO_VFM_PROGRESS_S must be the number of seconds"):
        every_s(text)


@pytest.mark.parametrize(("rank", "count"), [("0", 3), ("1", 0)])
def test_in_a_pipe_rank_0_alone_writes_and_no_line_is_wrapped_or_steers_a_terminal(rank, count):
    code = "from nemo_vfm.core import log\nfor _ in log.track('draw \\x1b films' + 'x' * 100, 'abc'): pass"
    environment = {**os.environ, "RANK": rank, "NEMO_VFM_PROGRESS_S": "0", "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert len(lines) == count and all(
        "draw ? filmsxxx" in line and f"x: {n}/3" in line for n, line in enumerate(lines, 1)
    )
