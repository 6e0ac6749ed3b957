"""Tests that a child that crashes, hangs or exceeds memory or output costs its request alone and says how it died."""

import ctypes
import errno
import os
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.curate.examine.sandbox import Child, ChildDied, ChildLimits, ChildReply, MediaWork, TickBatcher, keep_last
from nemo_vfm.curate.execute.work_units import WorkItem
from nemo_vfm.curate.media_pipeline import megapixels
from tests.support.processes import all_end


@dataclass(frozen=True)
class Misbehave:
    """Does what it is asked to, however bad."""

    def __call__(self, request, tick):
        tick(100)
        yield ChildReply({"pid": os.getpid()}, {"frames": np.arange(6, dtype=np.uint8).reshape(1, 2, 3)})
        match request["do"]:
            case "crash":
                ctypes.string_at(0)
            case "hang":
                time.sleep(60)
            case "spin":
                while True:
                    pass
            case "eat":
                np.ones(2 << 30, np.uint8).sum()
            case "write":
                with open(request["path"], "wb") as file:  # noqa: PTH123
                    file.write(bytes(30 << 20))
            case "full":
                raise OSError(errno.ENOSPC, "No space left on device")
            case "raise":
                raise ValueError("no idea")
            case "exit":
                os._exit(3)
        yield ChildReply({"done": True})


LIMITS = ChildLimits(memory_gb=1.0, silence_s=30.0, cpu_s=1.0, cpu_s_per_megapixel=0.1, file_gb=0.01)


@pytest.fixture(scope="module")
def child():
    one = Child(Misbehave(), LIMITS)
    yield one
    one.stop()


def ask(child, do, **more):
    answers = list(child.ask({"do": do, **more}, megapixels=0.0))
    return [a for a in answers if isinstance(a, ChildReply)], [a for a in answers if isinstance(a, int)]


def test_a_child_answers_in_json_and_arrays_and_says_how_far_it_is(child):
    replies, ticks = ask(child, "well")
    assert replies[0].arrays["frames"].tolist() == [[[0, 1, 2], [3, 4, 5]]]
    assert replies[1].fact == {"done": True}
    assert ticks == [100]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("do", "words"),
    [("crash", "was killed by SIGSEGV"), ("spin", "more than 1 s of processor time"), ("exit", "ended with status 3")],
)
def test_a_child_that_dies_is_named_and_replaced(child, do, words):
    before = ask(child, "well")[0][0].fact["pid"]
    with pytest.raises(ChildDied, match=words):
        ask(child, do)
    assert ask(child, "well")[0][0].fact["pid"] != before


def test_a_child_that_falls_silent_is_killed():
    child = Child(Misbehave(), replace(LIMITS, silence_s=1.0))
    ask(child, "well")
    with pytest.raises(ChildDied, match="gave no sign of life for 1 s"):
        ask(child, "hang")
    child.stop()


@pytest.mark.parametrize(("do", "words"), [("eat", "more memory"), ("write", "too large"), ("raise", "no idea")])
def test_a_child_that_is_refused_something_says_so_and_lives_on(child, tmp_path, do, words):
    before = ask(child, "well")[0][0].fact["pid"]
    with pytest.raises(DataError, match=words):
        ask(child, do, path=str(tmp_path / "large"))
    assert ask(child, "well")[0][0].fact["pid"] == before


def test_a_full_disk_stops_the_run_and_not_file_after_file(child):
    with pytest.raises(UserError, match=r"No space left on device; free disk space"):
        ask(child, "full")
    assert len(ask(child, "well")[0]) == 2


def test_who_stops_listening_in_the_middle_does_not_leave_answers_for_the_next(child):
    answers = child.ask({"do": "well"}, megapixels=0.0)
    next(answers)
    answers.close()
    replies, _ = ask(child, "well")
    assert len(replies) == 2


def test_work_that_dies_is_tried_once_more_in_a_fresh_child_and_its_first_answers_are_void():
    worker = MediaWork(Misbehave(), LIMITS).start()
    replies = keep_last(list(worker.do(WorkItem({"do": "crash"}))))
    worker.stop()
    assert [sorted(reply.fact) for reply in replies] == [["pid"], ["failed"]]


def test_a_stopped_child_is_gone(child):
    pid = ask(child, "well")[0][0].fact["pid"]
    child.stop()
    assert all_end([pid], within_s=5.0)


def test_slow_frames_are_told_one_by_one_and_quick_ones_by_the_dozen():
    now, told = [0.0], []
    pulse = TickBatcher(told.append, clock=lambda: now[0])
    for _ in range(3):
        now[0] += 20.0
        pulse.tick(1)
    assert told == [1, 1, 1]
    for _ in range(50):
        pulse.tick(1)
    pulse.tick(0, is_last=True)
    assert told == [1, 1, 1, 48, 2]


class Scripted:
    """Stands in for the child's end of the pipe: silent for as many polls as `silent` says, then it answers."""

    def __init__(self, silent):
        self.silent = silent

    def poll(self, seconds):
        self.silent -= 1
        return self.silent < 0

    def recv_bytes(self):
        return b"answer"


def test_a_child_that_works_or_waits_for_a_core_does_not_hang_however_long_it_is_silent(monkeypatch):
    child, spent = Child(Misbehave(), replace(LIMITS, silence_s=300.0)), iter(range(0, 100, 4))
    monkeypatch.setattr(child, "_spent_s", lambda: float(next(spent)))
    assert child._bytes(Scripted(silent=9)) == b"answer"
    monkeypatch.setattr(child, "_spent_s", lambda: 4.0)
    with pytest.raises(TimeoutError):
        child._bytes(Scripted(silent=2))


def test_processor_time_grows_with_pixels_and_frames(child):
    for frames, size, seconds in ((96, (3840, 2160), 1593), (96, (320, 240), 192), (0, (1, 1), 0)):
        assert round(ChildLimits().cpu_s_per_megapixel * megapixels(frames, *size)) == seconds
