"""Records which folders this process has locked, and ends the process once another one has taken over one of them.

A process that was paused for minutes may wake up in a folder that another one now writes. It must not write one more
byte, not even that it failed. So it ends as if it had been killed, which every run folder survives.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_OWNERS: dict[str, Callable[[], bool]] = {}
EXIT_CODE = 1


@contextmanager
def register_lease(name: str, is_ours: Callable[[], bool]) -> Iterator[None]:
    """While the block runs `is_ours` tells whether the folder of this name is still held."""
    _OWNERS[name] = is_ours
    try:
        yield
    finally:
        _OWNERS.pop(name, None)


def stop_if_lost() -> None:
    """End the process here and now where another one has taken over a folder of ours."""
    for name, is_ours in list(_OWNERS.items()):
        if not is_ours():
            with suppress(OSError):
                sys.stderr.write(f"{name} was taken over by another process while this one was silent; this one "
                                 f"stops, so that they do not both write to one run\n")  # fmt: skip
                sys.stderr.flush()
            os._exit(EXIT_CODE)
