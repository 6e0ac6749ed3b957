"""Runs a Python program that a model wrote in a limited child process.

docs/how-to/language/row_checks.md says what each limit guards against, and what is not guarded.
"""

import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import nemo_vfm
from nemo_vfm.core.errors import UserError
from nemo_vfm.synth.checks.child_start import AT_ITS_END, OUT_OF_MEMORY

Ending = Literal["ok", "error", "timeout", "memory", "output", "refused"]
#: What a run can do without for a test of the others.
LAYERS = ("namespaces", "landlock", "seccomp")
_START = "import sys; sys.path.insert(0, sys.argv[1]); from nemo_vfm.synth.checks.child_start import main; main({})"
_OPEN_FILES = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use.

    Args:
        cpu_s: seconds of the processor, whole.
        wall_s: seconds altogether, the start of the interpreter included.
        memory_mb: address space. The interpreter takes about 30.
        output_kb: stdout and stderr together; a program that writes more is ended.
        file_kb: one file that it writes.
        disk_kb: all of them, where the kernel lets us mount a disk of that size.
        threads: whether it may start threads. They have no limit but that of memory, and they make results depend on
            chance.
    """

    cpu_s: int = 5
    wall_s: float = 10.0
    memory_mb: int = 512
    output_kb: int = 256
    file_kb: int = 4096
    disk_kb: int = 16384
    threads: bool = False

    def __post_init__(self) -> None:
        for name in ("cpu_s", "wall_s", "memory_mb", "output_kb", "file_kb", "disk_kb"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be more than 0, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program ended."""

    ending: Ending  #: `ok` if it exited with 0; `refused` if it was never run: `stderr` then says why
    stdout: str  #: what it wrote, cut at the limit; bytes that are no UTF-8 are replaced
    stderr: str  #: the same
    seconds: float  #: wall time, the start of the interpreter included
    #: whether its last line was run. A program that exits with 0 before its tests is `ok` without this. One that sets
    #: out to deceive can forge both.
    reached_end: bool = False
    layers: tuple[str, ...] = ()  #: of protection that were in force


@dataclass(frozen=True, slots=True)
class Protections:
    """What can be limited on this machine."""

    files: bool  #: it reads nothing but Python and its own folder, and writes nothing else
    network: bool  #: it opens no socket, or has no network
    processes: bool  #: it starts none, and reaches none
    disk: bool  #: all that it writes is bounded, not only each file
    layers: tuple[str, ...]  #: that bring this about


@functools.cache
def protections() -> Protections:
    """What can be limited here: it starts a child once, and asks it."""
    found = run_python("", strict=False).layers
    network = "seccomp" in found or "namespaces" in found
    return Protections("landlock" in found, network, "seccomp" in found, "small disk" in found, found)


def run_python(
    source: str,
    *,
    stdin: str = "",
    files: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    strict: bool = True,
    without: Collection[str] = (),
) -> ProgramResult:
    """Run a program in a process of its own, in a new folder, with the standard library alone.

    Many threads may call it at once. The seed of Python's hashes is 0, so sets have the same order in each run; the
    time zone is UTC.

    Args:
        source: of the program.
        stdin: what it can read.
        files: relative name -> text, in its folder; it can import them.
        limits: of the program; as `Limits()` says where there are none.
        strict: whether to refuse where files, network or processes cannot be limited.
        without: protections to leave out, of `LAYERS`.

    Raises:
        UserError: `without` names no such protection.
    """
    if unknown := {*without} - {*LAYERS}:
        raise UserError(f"there is no protection called {sorted(unknown)[0]!r}; known are {', '.join(LAYERS)}")
    if not sys.platform.startswith("linux"):
        return ProgramResult("refused", "", "programs written by a model run only on Linux", 0.0)
    for name in files or {}:
        path = PurePosixPath(name)
        if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name or path.name == ".stdin":
            wrong = f"{name!r} is not a file name inside the program's folder; expected a relative path without '..'"
            return ProgramResult("refused", "", wrong, 0.0)
    limits = limits or Limits()
    with (
        tempfile.TemporaryDirectory(prefix="limited-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as file,
    ):
        size, memory = limits.file_kb * 1024, limits.memory_mb * 2**20
        rlimits = {
            "RLIMIT_CPU": (limits.cpu_s, limits.cpu_s + 1), "RLIMIT_AS": (memory, memory), "RLIMIT_FSIZE": (size, size),
            "RLIMIT_NOFILE": (_OPEN_FILES, _OPEN_FILES), "RLIMIT_CORE": (0, 0), "RLIMIT_MEMLOCK": (0, 0),
            "RLIMIT_MSGQUEUE": (0, 0),
        }  # fmt: skip
        # Of root the kernel does not count processes; there the filter of system calls does it alone.
        rlimits |= {} if limits.threads else {"RLIMIT_NPROC": (0, 0)}
        order = {
            "source": source, "stdin": stdin, "files": dict(files or {}), "folder": str(Path(folder).resolve()),
            "rlimits": rlimits, "disk_kb": limits.disk_kb, "threads": limits.threads, "strict": strict,
            "without": sorted(without), "parent": os.getpid(),
        }  # fmt: skip
        file.write(json.dumps(order).encode())
        file.seek(0)
        return _result(file, folder, limits)


def _result(order: IO[bytes], folder: str, limits: Limits) -> ProgramResult:
    """Start a child, and wait for its end, or bring it about."""
    begun, written = time.monotonic(), {"stdout": bytearray(), "stderr": bytearray()}
    report, end_of_child = os.pipe()
    # No preexec_fn: with threads around it may never return. The child limits itself.
    words = [sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", "-c", _START.format(end_of_child)]
    with os.fdopen(report, "rb") as reported:
        try:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and lines
                [*words, str(Path(nemo_vfm.__file__).resolve().parents[1])], stdin=order, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, cwd=folder, env={"PYTHONHASHSEED": "0"}, pass_fds=[end_of_child],
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(end_of_child)
        try:
            cut = _watch(process, written, begun + limits.wall_s, limits.output_kb * 1024)
        finally:
            # Before the child is waited for: until then its number belongs to nobody else.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                process.kill()
            code = process.wait()
        told: dict[str, Any] = json.loads(reported.read() or "{}")
    seconds = time.monotonic() - begun
    out, err = (bytes(part[: limits.output_kb * 1024]).decode("utf-8", "replace") for part in written.values())
    if "layers" not in told:
        if cut == "timeout":
            return ProgramResult("timeout", out, err, seconds)
        return ProgramResult("refused", "", told.get("refused") or f"the child did not start: {err}", seconds)
    # A kill that is none of ours: the hard limit of CPU time, or the kernel was out of memory.
    ends: dict[int, Ending] = {
        0: "ok", AT_ITS_END: "ok", OUT_OF_MEMORY: "memory", -signal.SIGXCPU: "timeout",
        -signal.SIGKILL: "timeout" if seconds >= limits.cpu_s else "memory",
    }  # fmt: skip
    return ProgramResult(
        cut or ends.get(code, "error"), out, err, seconds, code == AT_ITS_END and not cut, tuple(told["layers"])
    )


def _watch(
    process: subprocess.Popen[bytes], written: Mapping[str, bytearray], end_s: float, max_bytes: int
) -> Ending | None:
    """Read what it writes until it ends, or until a limit is passed, which is the answer."""
    assert process.stdout and process.stderr
    with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
        for stream, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, name)
        ended = os.pidfd_open(process.pid)
        selector.register(ended, selectors.EVENT_READ, None)
        over = False
        try:
            while True:
                left = end_s - time.monotonic()
                ready = [key for key, _ in selector.select(0 if over else max(left, 0))]
                streams = [key for key in ready if key.data]
                for key in streams:
                    if data := os.read(key.fd, 65536):
                        written[key.data].extend(data)
                    else:
                        selector.unregister(key.fileobj)
                if sum(map(len, written.values())) > max_bytes:
                    return "output"
                if over and not streams:
                    return None  # it has ended, and nothing is left in its pipes
                over = over or len(ready) > len(streams)
                if left <= 0:
                    return "timeout"
        finally:
            os.close(ended)
