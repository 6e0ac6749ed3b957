"""Tests that a worker that dies or hangs ends its reader's pipe, and raises nothing elsewhere."""

import multiprocessing
import os
import signal
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import pytest
import torch.multiprocessing

from nemo_vfm.data.loader.worker_processes import WorkerWatch

FORK = multiprocessing.get_context("fork")


def silent(queue: Any) -> None:
    signal.pause()


def half(queue: Any) -> None:
    """Say that a thousand bytes come, and give three."""
    os.write(queue._writer.fileno(), struct.pack("!i", 1000) + b"abc")
    signal.pause()


def half_and_killed(queue: Any) -> None:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    half(queue)


def let_go(queue: Any) -> None:
    queue._writer.close()
    for child in FORK.active_children():
        child.kill()


@pytest.fixture
def queue() -> Iterator[Any]:
    """A pipe of torch's; whoever still reads it after 40 s is let go, so what fails here fails and does not hang."""
    queue = torch.multiprocessing.get_context("fork").Queue()
    clock = threading.Timer(40, let_go, (queue,))
    clock.daemon = True
    clock.start()
    yield queue
    clock.cancel()


def started(queue: Any, *work: Any) -> tuple[WorkerWatch, list[BaseProcess]]:
    workers: list[BaseProcess] = [FORK.Process(target=one, args=(queue,), daemon=True) for one in work]
    for worker in workers:
        worker.start()
    return WorkerWatch(queue, workers), workers


@pytest.fixture
def a_strangers_child(queue: Any) -> Iterator[None]:
    """It was forked while the pipe was open, so it holds it open, whatever becomes of its workers."""
    child = FORK.Process(target=silent, args=(queue,), daemon=True)
    child.start()
    yield
    child.kill()
    child.join()


@pytest.mark.usefixtures("a_strangers_child")
def test_half_a_message_ends_at_the_death_even_where_others_hold_the_pipe_open(queue: Any) -> None:
    watch, workers = started(queue, half_and_killed, silent)
    began = time.monotonic()
    with pytest.raises((EOFError, OSError)), watch.while_waiting(60):
        queue.get(timeout=50)
    assert time.monotonic() - began < 30
    assert watch.died == f"process {workers[0].pid} was killed by SIGKILL", "not the one ended for it"
    watch.clear()
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.slow
@pytest.mark.parametrize("work", [silent, half], ids=["nothing", "half a message"])
def test_a_reader_in_another_thread_is_let_go_after_its_time(work: Any, queue: Any) -> None:
    watch, _ = started(queue, work, silent)

    def wait() -> None:
        with watch.while_waiting(2):
            queue.get(timeout=50)

    began = time.monotonic()
    with ThreadPoolExecutor(1) as threads, pytest.raises((EOFError, OSError)):
        threads.submit(wait).result(60)
    assert time.monotonic() - began < 30
    watch.clear()


def test_one_that_was_dead_before_is_found_at_once(queue: Any) -> None:
    watch, workers = started(queue, silent)
    workers[0].kill()
    workers[0].join()
    with pytest.raises(EOFError), watch.while_waiting(60):
        queue.get(timeout=50)
    assert "by SIGKILL" in watch.died


def test_a_death_raises_nothing_between_two_lines_and_closes_all_it_opened(queue: Any) -> None:
    before = psutil.Process().num_fds()
    watch, workers = started(queue, silent, silent)
    handler = signal.getsignal(signal.SIGCHLD)
    until = time.monotonic() + 30
    with watch.while_waiting(60):
        workers[0].kill()
        while not watch.died and time.monotonic() < until:
            time.sleep(0.01)
    assert watch.died and signal.getsignal(signal.SIGCHLD) is handler
    watch.clear()
    for worker in workers:
        worker.close()
    assert psutil.Process().num_fds() <= before  # what an earlier test left may be closed meanwhile


def test_what_came_in_time_is_given_and_nobody_is_killed(queue: Any) -> None:
    watch, workers = started(queue, silent)
    queue.put("a batch")
    with watch.while_waiting(60):
        assert queue.get(timeout=50) == "a batch"
    assert watch.died == "" and workers[0].is_alive()
    watch.kill()
    watch.clear()
