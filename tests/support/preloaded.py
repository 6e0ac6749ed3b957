"""Starts commands as copies of one process that has imported torch and lightning, in place of a fresh `python -m`.

Imports take 4 to 7 CPU seconds of a command, often more than its work in a test. The ranks and the runs of a sweep that
such a command starts are copies, too. Where the start itself is tested (what is imported, PYTHONPATH, a shell),
`subprocess` starts it.
multiprocessing's fork server would not do: what a command starts by it would be copies of this fat process, too.
"""

import atexit
import fcntl
import functools
import gc
import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]  # not that of `repository`: a word of a shell imports nothing installed
_IMPORTED = (
    "nemo_vfm.cli.main", "nemo_vfm.workflow", "nemo_vfm.curate.job", "nemo_vfm.train.job", "lightning",
    # What these import when they run: the 650 modules of a training took a third of its time.
    "nemo_vfm.cli.verbs.run", "nemo_vfm.config.slot_fit", "nemo_vfm.runtime.run_folder",
    "nemo_vfm.runtime.checks.meta_build", "nemo_vfm.runtime.checks.built_networks", "nemo_vfm.config.recipe_check",
    "nemo_vfm.runtime.checks.part_compatibility", "nemo_vfm.train.state.data_position", "nemo_vfm.train.member_use",
    "nemo_vfm.data.sources.shard_data", "nemo_vfm.data.loader.opened_samples", "nemo_vfm.data.shards.shard_paths",
    "nemo_vfm.data.loader.lightning_data", "nemo_vfm.parallel.engine.model_start", "nemo_vfm.train.trainer",
    "nemo_vfm.parallel.engine.torch_start", "nemo_vfm.parallel.engine.weight_updater", "nemo_vfm.perf.flops",
    "nemo_vfm.parallel.checkpoint.checkpoint_saver", "nemo_vfm.diffusion.video_pipeline", "nemo_vfm.train.loggers",
    "nemo_vfm.models.convert.video.pretrained_video", "nemo_vfm.train.callbacks.preview", "nemo_vfm.report.page",
    "nemo_vfm.cli.verbs.check", "nemo_vfm.runtime.sweep", "nemo_vfm.runtime.local_launch",
    "nemo_vfm.runtime.checks.missing_packages", "nemo_vfm.synth.sample_videos", "nemo_vfm.curate.encode_shards",
    *(f"nemo_vfm.report.sections.{file.stem}" for file in (ROOT / "nemo_vfm/report/sections").glob("[a-z]*.py")),
    "launcher.plan.recipe_info", "torch.utils.tensorboard", "omegaconf", "pandas", "s3fs", "attr.validators",
)  # fmt: skip
_SERVE = f"from {__name__} import serve; serve(*map(int, __import__('sys').argv[1:]))"
_SERVER = "NEMO_VFM_TEST_SERVER"  # the descriptor by which the words of a shell ask
#: Stands for a program in a shell.
_WORD = f"""#!{{python}} -IS
import sys
sys.path.insert(0, {{checkout!r}})
from {__name__} import ask
sys.exit(ask(*{{words}}, *sys.argv[1:]))
"""
#: `copied-python` takes `-m MODULE` or `-c CODE`.
_WORDS = {"nemo-vfm": ("-P", "-m", "nemo_vfm"), "copied-python": ()}
_MAX_BYTES = 1 << 17  # of a command and its environment
_MAX_FDS = 8
_ABOVE = 200  # where a copy first puts what it received: some take the numbers that the sender had
_asking: list[socket.socket] = []  # the way to the server: this process's own, or its parent's


class Started:
    """A command that runs in a session of its own; it is waited for and ended as a `subprocess.Popen` is.

    Args:
        words: `[sys.executable, "-m", MODULE, ...]` or `[sys.executable, "-c", CODE, ...]`; `-P` may stand before.
        err: the file of its standard error.
        out: the file of its standard output; that of its errors where None.
        cwd: where it runs.
        env: all of its environment; this process's where None.
    """

    def __init__(
        self, words: Sequence[str], *, err: Path, out: Path | None = None, cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        with err.open("wb") as errors, (out or err).open("ab") as output:
            self._start(words, {output.fileno(): 1, errors.fileno(): 2}, cwd, os.environ if env is None else env)

    def _start(self, words: Sequence[str], files: Mapping[int, int], cwd: Path, env: Mapping[str, str]) -> None:
        """The files are descriptors here, and what they become there."""
        assert words[0] == sys.executable and next(word for word in words[1:] if word != "-P") in ("-m", "-c"), words
        self.args, self.returncode = list(words), None
        message = json.dumps([words[1:], str(cwd), dict(env), list(files.values())]).encode()
        assert len(message) < _MAX_BYTES
        mine, theirs = os.pipe()
        server = _server()
        socket.send_fds(server, [message], [theirs, server.fileno(), *files])
        os.close(theirs)
        self._said = os.fdopen(mine, "rb", buffering=0)
        self.pid = int(self._said.readline())

    def poll(self) -> int | None:
        """The exit status, minus the signal; None while it runs."""
        if self.returncode is None and connection.wait([self._said], 0):
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not connection.wait([self._said], timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._said.readline())
            self._said.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Where it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, where it still runs."""
        self.send_signal(signal.SIGKILL)


class Child(Started):
    """One that has this process's standard output and error where none are given."""

    def __init__(
        self, words: Sequence[str], env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = (),
        cwd: Path | None = None, stdout: int | None = None, stderr: int | None = None,
    ) -> None:  # fmt: skip
        files = {stdout or 1: 1, stderr or 2: 2, **{one: one for one in pass_fds}}
        self._start(words, files, cwd or Path.cwd(), os.environ if env is None else env)


def _popen(words: list[str], **how: Any) -> "Child | subprocess.Popen[bytes]":
    """What our modules ask `subprocess.Popen` for; each copy has no input and a session of its own anyway."""
    if words[1:3] == ["-I", "-S"]:
        return subprocess.Popen(words, **how)  # the orphan killer, which imports nothing
    return Child(words, **{name: value for name, value in how.items() if name not in ("stdin", "process_group")})


#: In place of the `subprocess` of a module that starts our commands, as every copy has it: they are copies, too.
COMMANDS = SimpleNamespace(Popen=_popen, DEVNULL=subprocess.DEVNULL)


def run(
    words: Sequence[str], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as `subprocess.run(words, capture_output=True, text=True)` does."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        started = Started(words, out=out, err=err, cwd=cwd, env=env)
        try:
            status = started.wait(timeout)
        finally:
            started.kill()
        return subprocess.CompletedProcess(words, status, out.read_text(), err.read_text())


def _ask_for(words: Sequence[str], *, env: Mapping[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
    """What the launcher, which asks `nemo-vfm` about a recipe, asks `subprocess.run` for."""
    return run([sys.executable, "-P", "-m", "launcher.plan.isolated", *words[3:]], cwd=Path.cwd(), env=env)


def import_too(modules: Sequence[str]) -> None:
    """Have later copies begin with more."""
    _server().send(json.dumps(list(modules)).encode())


def _server() -> socket.socket:
    """The way to the server of this checkout, or in a copy to the server that made it."""
    if not _asking:
        _asking.append(_started_server(sys.executable, ROOT))
    return _asking[0]


def _started_server(python: str | Path, checkout: Path) -> socket.socket:
    """The way to a server of an environment and a checkout, which holds this module.

    Processes that share the tests share it, too, and it ends with the one that started them; else it ends with this
    one. It is started by the first that wants it.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    name = f"\0{run or os.getpid()} {hashlib.sha256(f'{python} {checkout}'.encode()).hexdigest()}"
    # A cluster of a test ends whatever has its variable.
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SLURM_CONF")}
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while True:
        with suppress(ConnectionRefusedError):
            ours.connect(name)
            return ours
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as its:
            try:
                its.bind(name)
            except OSError:  # another was first
                continue
            its.listen(64)
            words = [python, "-c", _SERVE, str(its.fileno()), str(os.getppid() if run else os.getpid())]
            subprocess.Popen(words, cwd=checkout, env=environment, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL,
                             start_new_session=True)  # fmt: skip


class Shell:
    """What a shell needs so that `nemo-vfm` in it starts copies of a server of an environment of its own.

    Args:
        python: of the environment.
        checkout: what is installed there; it gets this module, and a folder for the word.
    """

    def __init__(self, python: Path, checkout: Path) -> None:
        copy = checkout / Path(__file__).relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(__file__, copy)
        self.path = checkout / "tests" / "words"  # goes first on PATH
        self.path.mkdir()
        for name, words in _WORDS.items():
            (self.path / name).write_text(_WORD.format(python=python, checkout=str(checkout), words=words))
            (self.path / name).chmod(0o755)
        self._server = _started_server(python, checkout)
        self.fd = self._server.fileno()  # which it inherits
        self.environment = {_SERVER: str(self.fd)}


def ask(*words: str) -> int:
    """Start the command of a shell; its exit status, as a shell says it."""
    _asking.append(socket.socket(fileno=int(os.environ.pop(_SERVER))))
    status = Child([sys.executable, *words]).wait()
    return status if status >= 0 else 128 - status


def serve(fd: int, owner: int) -> None:
    """Import, then start what is asked for until the owner has ended and nobody can ask any more.

    A command's own copy returns as it ends.
    """
    # Each Trainer asks all packages that are installed for callbacks of theirs.
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # type: ignore[assignment]
    importlib.metadata.entry_points(group="lightning.pytorch.callbacks_factory")
    _import(filter(importlib.util.find_spec, _IMPORTED))
    _prepare()
    installed = [path for path in sys.path if path and Path(path) != ROOT]
    owners_end, others, asking = os.pidfd_open(owner), socket.socket(fileno=fd), list[socket.socket]()
    while (ready := connection.wait([others, *(asking or [owners_end])])) != [owners_end]:
        if others in ready:
            asking.append(others.accept()[0])
        for one in filter(ready.__contains__, list(asking)):
            message, received, *_ = socket.recv_fds(one, _MAX_BYTES, _MAX_FDS)
            if not message:
                asking.remove(one)
                one.close()
            elif not received:
                _import(json.loads(message))
            elif os.fork() == 0:
                for way in (others, *asking):
                    way.close()
                os.close(owners_end)
                words, cwd, environment, files = json.loads(message)
                if _is_the_command(received, files):
                    _become(words, cwd, environment, installed)
            else:
                for descriptor in received:
                    os.close(descriptor)


def _prepare() -> None:
    """What each training and each report would do anew: measure a matrix product, compile templates."""
    import torch

    from nemo_vfm.cli.doctor import examine_machine, probe_child
    from nemo_vfm.perf import flops
    from nemo_vfm.report.parts import section

    examine_machine.examine.__defaults__ = (probe_child.answer,)  # there and then: five processes would import torch
    if torch.version.cuda is None:  # a device that was asked once is lost to forks
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a fork has none of the others, and would wait for them
        with torch.random.fork_rng(devices=[]):
            flops.peak_flops()
        torch.set_num_threads(threads)
    for name in [name for name in sys.modules if name.startswith("nemo_vfm.report.")]:
        for text in vars(sys.modules[name]).values():
            if isinstance(text, str) and "</" in text and text != section._MACROS:
                section._compile_template(text)


def _import(modules: Iterable[str]) -> None:
    for name in modules:
        importlib.import_module(name)
    gc.set_threshold(10_000, 20, 20)  # as in the process that runs the tests
    gc.collect()
    gc.freeze()  # a collection in a copy would copy all that it walks


def _is_the_command(received: Sequence[int], files: Sequence[int]) -> bool:
    """Fork once more: the one runs, the other waits for it and says its number and how it ended."""
    said, server, *given = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for one in received)
    for one in received:
        os.close(one)
    if child := os.fork():
        os.close(server)  # else the server, which ends with the last that can ask, waited for those that only wait
        os.write(said, b"%d\n" % child)
        os.write(said, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    os.setsid()
    for one, number in zip(given, files, strict=True):
        os.dup2(one, number)
    for one in (said, *given):
        os.close(one)
    _asking.append(socket.socket(fileno=server))
    return True


def _become(words: list[str], cwd: str, environment: dict[str, str], installed: list[str]) -> None:
    from launcher.plan import recipe_info
    from nemo_vfm.runtime import local_launch, sweep

    local_launch.subprocess = sweep.subprocess = COMMANDS  # type: ignore[assignment]
    recipe_info.subprocess = SimpleNamespace(run=_ask_for, DEVNULL=None, TimeoutExpired=subprocess.TimeoutExpired)
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("PYTHONUNBUFFERED") and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # Python looks at the variable when it begins
    os.chdir(cwd)
    alone = words[0] == "-P"
    words = words[alone:]
    sys.path[:] = [*[cwd][alone:], *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *installed]
    sys.argv = ["-c", *words[2:]] if words[0] == "-c" else words[1:]
    status = 0
    try:
        if words[0] == "-c":
            exec(words[1], sys.modules["__main__"].__dict__)
        else:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        status = error.code or 0
    # As Python ends, but for the last step, which takes all modules apart: 0.4 s, and half of a short command.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status & 0xFF)
