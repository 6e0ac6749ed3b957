"""Tests that a codec which makes its process real-time leaves it as it was."""

import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from nemo_vfm.data.video import codecs, realtime_guard
from tests.support.repository import ROOT


def may_raise() -> bool:
    """Whether this user can make a thread real-time, as root can."""

    def tried() -> None:
        try:
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_FIFO, os.sched_param(1))
            allowed.append(True)
        except OSError:
            pass

    allowed: list[bool] = []
    if hasattr(os, "sched_setscheduler"):
        thread = threading.Thread(target=tried)
        thread.start()
        thread.join()
    return bool(allowed)


ALLOWED = pytest.mark.skipif(
    not may_raise(), reason="only root, and not in every container, can make threads real-time"
)

ENCODE = """
import io
from nemo_vfm.data.video import codecs, realtime_guard
from nemo_vfm.data.video.encode import encode_mp4
from tests.support.films import pan

def watched():
    for frame in pan(1, 40):
        yield frame
        seen.update(realtime_guard.real_time_threads())

seen = set()
assert codecs.why_not("svtav1") is None
seen.update(realtime_guard.real_time_threads())
assert encode_mp4(io.BytesIO(), watched(), 24, encoder="svtav1") == 40
print(len(seen), len(realtime_guard.real_time_threads()))
"""


@pytest.mark.slow
@ALLOWED
@pytest.mark.skipif(codecs.why_not("svtav1") is not None, reason="SVT-AV1 does not work here")
def test_svt_av1_leaves_no_thread_real_time():
    words = [sys.executable, "-c", ENCODE]  # of its own: else a failure would raise the whole test run
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["0", "0"], done.stderr


@contextmanager
def another_thread(*, raised: bool):
    """A thread that waits; real-time from its start where wished. Gives it a word to become so later."""
    begun, now, done, over = (threading.Event() for _ in range(4))

    def work() -> None:
        number.append(threading.get_native_id())
        begun.set()
        now.wait()
        os.sched_setscheduler(number[0], os.SCHED_FIFO, os.sched_param(1))
        done.set()
        over.wait()

    def become_so() -> None:
        now.set()
        assert done.wait(30)

    number: list[int] = []
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(30)
        if raised:
            become_so()
        yield number[0], become_so
    finally:
        now.set()
        over.set()
        thread.join()


@ALLOWED
def test_only_what_became_real_time_meanwhile_is_taken_back():
    with another_thread(raised=True) as (chosen, _), another_thread(raised=False) as (ours, become_so):
        with realtime_guard.drop_realtime_priority():
            become_so()
            assert os.sched_getscheduler(ours) == os.SCHED_FIFO
        assert os.sched_getscheduler(ours) == os.SCHED_OTHER
        assert os.sched_getscheduler(chosen) == os.SCHED_FIFO, "its user wanted that"


def test_where_nobody_can_be_asked_nothing_is_done(monkeypatch):
    monkeypatch.delattr(os, "sched_getscheduler", raising=False)
    with realtime_guard.drop_realtime_priority():
        pass
