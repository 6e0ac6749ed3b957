"""Tests that a worker stops when another thread stops it, as Ctrl-C does."""

import threading
import time
from dataclasses import dataclass

from nemo_vfm.curate.examine.sandbox import ChildLimits, ChildReply, MediaWork
from nemo_vfm.curate.execute.work_units import Tick, WorkItem


@dataclass(frozen=True)
class Endless:
    """Says that it lives, and never ends."""

    def __call__(self, request, tick):
        yield ChildReply({"begun": True})
        while True:
            time.sleep(0.05)
            tick(48)


def test_an_item_that_was_stopped_is_not_begun_anew(tmp_path):
    """Ctrl-C waited for the whole film, since a second child decoded it from its first frame on."""
    worker, parts, begun = MediaWork(Endless(), ChildLimits()).start(), [], threading.Event()

    def work():
        for part in worker.do(WorkItem({}, 1.0)):
            if not isinstance(part, Tick):
                parts.append(part.fact)
                begun.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert begun.wait(30)
    worker.stop()
    thread.join(10)
    alive = thread.is_alive()
    later = list(worker.do(WorkItem({}, 1.0)))
    assert not alive
    assert [list(part) for part in parts] == [["begun"], ["failed"]]
    assert [list(part.fact) for part in later] == [["failed"]]
