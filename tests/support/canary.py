"""Detects who opens forbidden files or connects to a forbidden address."""

import ctypes
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_IN_OPEN, _IN_NONBLOCK, _EVENT = 0x20, os.O_NONBLOCK, struct.Struct("iIII")


class Opened:
    """Counts how often a file is opened, whoever opens it and in whichever language: the kernel tells."""

    def __init__(self, path: Path) -> None:
        if sys.platform != "linux":
            pytest.skip("the kernel tells who opens a file on Linux only")
        libc = ctypes.CDLL(None, use_errno=True)
        self._handle = libc.inotify_init1(_IN_NONBLOCK)
        assert self._handle >= 0 and libc.inotify_add_watch(self._handle, os.fsencode(path), _IN_OPEN) >= 0

    def count(self) -> int:
        """How often since it was last asked."""
        times = 0
        with suppress(BlockingIOError):
            while data := os.read(self._handle, 4096):
                times += len(data) // _EVENT.size
        return times

    def close(self) -> None:
        os.close(self._handle)


@contextmanager
def called() -> Iterator[tuple[str, list[bytes]]]:
    """An http address on this machine, and what callers said to it."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    caller, _ = server.accept()
                    with caller:
                        caller.settimeout(2)
                        heard.append(caller.recv(200))
                        caller.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/canary.ts", heard
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
