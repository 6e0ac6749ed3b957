"""Runs a launch on this machine: the same folder, the same arguments, and the exit status of the run."""

import os
import shlex
import signal
import subprocess
import sys
from types import FrameType

from launcher.plan.launch import Launch
from launcher.plan.programs import search_path, whole_paths
from launcher.render.profile import FOLDER
from launcher.state import secret_files
from launcher.state.launch_folder import submission_lock, write
from launcher.state.logs import LocalLog, OnTerminal
from nemo_vfm.core.preemption import EXIT_CODE, INTERRUPTED, handled_by
from nemo_vfm.core.storage.files import write_text

_OVER = (EXIT_CODE, INTERRUPTED)  # somebody wants this machine for something else, so no other run of a sweep is begun
_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def commands(launch: Launch) -> list[list[str]]:
    """Each command, word by word: one, or one for every run of a sweep."""
    runs = [(run.run_dir, run.typed) for run in launch.runs] or [(launch.run_dir, launch.typed)]
    words = [sys.executable, "-P", "-m", "nemo_vfm", "run"]
    if launch.request.profile is not None:  # every process on this machine is recorded in the launch's folder
        output = f"--output={launch.folder / FOLDER}/here-%p"
        words = ["nsys", *launch.request.profile.options(), output, *words]
    return [[*words, str(recipe), f"run_dir={folder}", *typed, *launch.request.run_words()]
            for recipe, (folder, typed) in zip(launch.recipes(), runs, strict=True)]  # fmt: skip


def lines(launch: Launch) -> str:
    """What runs and all that is set for it, as lines that a shell reads back as these words; no secret's value."""
    path = _module_path(launch)
    changed = [f"export PYTHONPATH={shlex.quote(path)}" if path else "unset PYTHONPATH", "export PYTHONUNBUFFERED=1"]
    for name, value in launch.where.variables.items():
        changed.append(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
    changed += [f"IFS= read -r {name} < {shlex.quote(str(file))}; export {name}"
                for name, file in launch.where.secrets.items()]  # fmt: skip
    return "".join(f"{line}\n" for line in (f"cd {shlex.quote(str(launch.workdir))}", *changed,
                                            *map(shlex.join, commands(launch))))  # fmt: skip


def _module_path(launch: Launch) -> str:
    """The launch's code first, where something of it is imported; of the user's own, whole paths."""
    return os.pathsep.join(filter(None, [*map(str, launch.module_path), whole_paths(os.environ.get("PYTHONPATH", ""))]))


def run_here(launch: Launch) -> int:
    """Run it and wait; of a sweep one run after the other. The status of the first that was not well."""
    environment = {**os.environ, "PATH": search_path(), "PYTHONPATH": _module_path(launch)}
    environment["PYTHONUNBUFFERED"] = "1"  # the log keeps the last lines of a killed process
    for name, value in launch.where.variables.items():
        environment.pop(name, None)
        environment.update({} if value is None else {name: value})
    for name, file in launch.where.secrets.items():
        environment[name] = secret_files.value(name, file)
    with submission_lock(launch.run_dir):
        write(launch, {})
        write_text(launch.folder / "command.txt", lines(launch))
        (launch.folder / FOLDER).mkdir(exist_ok=True) if launch.request.profile else None
        log = OnTerminal() if sys.stderr.isatty() else LocalLog(launch.folder)
    first = 0
    with log:
        for words in commands(launch):
            # Our own interpreter and module; the words are arguments, never a shell's.
            process = subprocess.Popen(words, env=environment, cwd=launch.workdir, stdout=log.out, stderr=log.err)  # noqa: S603

            def pass_on(number: int, _: FrameType | None, run: "subprocess.Popen[bytes]" = process) -> None:
                if number != signal.SIGINT:  # a Ctrl-C reaches the run by itself: it is in the terminal's group
                    run.send_signal(number)

            with handled_by(pass_on, _HEARD):
                log.wait(process)
            status = process.returncode if process.returncode >= 0 else 128 - process.returncode
            first = first or status
            if status in _OVER:
                break
    return first
