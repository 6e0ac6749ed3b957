"""Starts our modules as processes, limits them, ends them with their parent, and says how a process ended."""

import ctypes
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

_ROOT = str(Path(__file__).resolve().parents[2])
# This package, wherever it lies, and nothing else from there: a folder of installed packages would hide Python's own.
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import nemo_vfm; del sys.path[0]; "
    "from nemo_vfm.core.process import die_with_parent; die_with_parent(int(sys.argv.pop(1)))"
)
_PR_SET_PDEATHSIG = 1
_STARTING, _SAFE_PATH = threading.Lock(), "PYTHONSAFEPATH"
Child = tuple[BaseProcess, Connection]


def run_module(
    module: str, words: Sequence[str], *, env: Mapping[str, str], timeout_s: float | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `main()` of a module of ours in an interpreter of its own, and wait for its end; what it said is captured.

    It gets no input, and imports nothing from the working directory, where a stranger's torch.py may lie.

    Raises:
        subprocess.TimeoutExpired: it took longer. As at a Ctrl-C, it is ended then, with all that it has started.
    """
    begin = f"{_START}; from {module} import main; sys.exit(main())"
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and module; the words are arguments
        [sys.executable, "-P", "-c", begin, _ROOT, str(os.getpid()), *words], env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start_child(
    target: Callable[..., None], *arguments: object, context: SpawnContext | ForkServerContext | None = None
) -> Child:
    """Start a child of `multiprocessing`, which calls `target(pipe, *arguments)`; the pair has our end of the pipe.

    Python begins it by `-c`, and so with the working directory before its own modules, before it takes over our path.
    """
    context = context or multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    with _STARTING:
        is_set = _SAFE_PATH in os.environ
        os.environ.setdefault(_SAFE_PATH, "1")
        try:
            process.start()
        finally:
            if not is_set:
                del os.environ[_SAFE_PATH]
    theirs.close()
    return process, ours


def end_children(children: Collection[Child]) -> None:
    """End them at once, and their pipes."""
    for process, pipe in children:
        pipe.close()
        process.kill()
    for process, _ in children:
        process.join(10)


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process, on Linux, when the thread that started it ends: also while Python is held.

    Where the parent's number is given and it has ended before, this process ends here.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def follow_parent() -> None:
    """Leave Ctrl-C, which reaches the whole terminal, to the parent, and end when it does, however it ends.

    For a child of `multiprocessing`, which may outlive the thread that started it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_it() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_it, daemon=True).start()


def end_now(status: int) -> NoReturn:
    """End this process without the usual end, where threads and torch's groups may wait for ranks that are gone."""
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def lower_limits(limits: Mapping[int, int]) -> None:
    """Limit this process, soft and hard, by `resource.RLIMIT_*`; a limit that is lower already stays."""
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (allowed, allowed))


def how_it_ended(status: int | None, said: str = "") -> str:
    """Such as "was killed by SIGSEGV" or, with the last line that it said, "ended with status 3: no such file"."""
    if status is None:
        return "hangs"
    how = f"ended with status {status}"
    if status < 0:  # of the real-time signals only two have names
        names = {int(one): one.name for one in signal.Signals}
        how = f"was killed by {names.get(-status, f'signal {-status}')}"
    lines = said.strip().splitlines()
    return f"{how}: {lines[-1].strip()[:300]}" if lines else how


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
