# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The end of a pipe and process groups in; once the other end is gone, so are they.

Run as a file by the launcher of ranks, apart from it: a rank whose parent is killed is killed by the kernel too, and
what it has started would stay.
"""

import os
import signal
import sys
from contextlib import suppress


def main(pipe: int, groups: list[int]) -> None:
    """Wait, and end the groups."""
    os.read(pipe, 1)
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(group) for group in sys.argv[2:]])
