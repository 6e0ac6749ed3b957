"""Ties a child of `multiprocessing` to its parent."""

import multiprocessing
import os
import signal
import threading


def follow_parent() -> None:
    """Leave Ctrl-C, which reaches the whole terminal, to the parent, and end when it does, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
