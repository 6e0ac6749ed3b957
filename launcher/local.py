# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A launch in, the same run on this machine out: the same folder, the same words, and the exit status of the run."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from launcher import secret_files
from launcher.folder import held, write
from launcher.launch import Launch
from nemo_vfm.core.files import write_text

_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1)  # a Ctrl-C reaches the run by itself: it is in the terminal's group


def words(launch: Launch) -> list[str]:
    """The command, word by word."""
    recipe = str(launch.recipe_file)
    return [sys.executable, "-P", "-m", "nemo_vfm", "run", recipe, f"run_dir={launch.run_dir}",
            *launch.asked.run_words()]  # fmt: skip


def command(launch: Launch) -> str:
    """The command as a line that a shell reads back as these words."""
    return shlex.join(words(launch))


def run_here(launch: Launch) -> int:
    """Run it and wait.

    Raises:
        UserError: a secret cannot be read.
    """
    environment = _environment(launch)
    with held(launch.run_dir):
        write(launch, {})
        write_text(launch.folder / "command.txt", f"{command(launch)}\n")
    # Our own interpreter and module; the words are arguments, never a shell's.
    process = subprocess.Popen(words(launch), env=environment, cwd=launch.workdir)  # noqa: S603
    with _handed_on(process):
        status = process.wait()
    return status if status >= 0 else 128 - status


def _environment(launch: Launch) -> dict[str, str]:
    """Ours, with the launch's code first and with what the cluster's file says."""
    path = [str(launch.folder / "code")] if launch.code.files else []
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*path, os.environ.get("PYTHONPATH", "")]))}
    for name, value in launch.where.environment.items():
        found.pop(name, None)
        found.update({} if value is None else {name: value})
    for name, file in launch.where.secrets.items():
        found[name] = secret_files.value(name, file)
    return found


@contextmanager
def _handed_on(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Hand signals on to the run, which ends well by itself."""

    def hand_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    def leave_it_to_the_run(number: int, frame: FrameType | None) -> None:
        """It gets the same Ctrl-C, and says what became of it."""

    handlers = {**dict.fromkeys(_PASSED_ON, hand_on), signal.SIGINT: leave_it_to_the_run}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
