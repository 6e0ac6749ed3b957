"""Kills process groups once the other end of a pipe is closed.

The launcher of ranks runs this file as a separate process. The kernel kills a rank whose parent is killed, but not
the processes that the rank has started.
"""

import os
import signal
import sys
from contextlib import suppress


def main(pipe: int, groups: list[int]) -> None:
    """Wait, and end the groups."""
    with suppress(OSError):
        os.read(pipe, 1)
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(group) for group in sys.argv[2:]])
