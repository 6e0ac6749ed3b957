"""Runs operations on media in a child process within limits, and reports how the child died if it did.

A damaged or hostile file may crash a decoder, hang it, or make it exhaust memory: that costs the child, never the run.
The child receives its requests as objects, which it trusts; it answers in JSON and raw bytes, which run no code on our
side.
"""

import json
import math
import multiprocessing
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.reduction import ForkingPickler
from types import ModuleType

import cv2
import numpy as np
import psutil
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.process import end_children, follow_parent, how_it_ended, lower_limits, start_child
from nemo_vfm.core.storage.files import is_full
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.execute.work_units import Tick, Worker, WorkItem

_TICKS_EVERY = 48  # frames: often enough for a progress bar, and cheap
_TICKS_EVERY_S = 1.0  # where frames are slow: 48 of 4K, mended on a busy core, took longer than any silence allowed
_AT_WORK = 0.01  # of a core; a child that gets less for the whole of a silence hangs
_STARTING = threading.Lock()


class ChildDied(DataError):
    """The child was killed, or crashed, over one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLimits:
    """What one child may use. Where a machine lacks such limits (macOS, in part), the limits of time still hold."""

    memory_gb: float = 6.0  #: of its own memory, in 10^9 bytes
    #: a child hangs, and is killed, if for this many seconds it reports nothing and uses next to no processor time. It
    #: reports each frame. One that waits for a busy core, or works long on a frame, does not hang.
    silence_s: float = 300.0
    cpu_s: float = 120.0  #: processor seconds for one file, in addition to those for its frames
    #: processor seconds for each 10^6 pixels of each frame; a smaller frame counts as 10^6
    cpu_s_per_megapixel: float = 2.0
    file_gb: float = 32.0  #: the largest file it may write, in 10^9 bytes

    def __post_init__(self) -> None:
        for name in ("memory_gb", "silence_s", "cpu_s", "cpu_s_per_megapixel", "file_gb"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number above 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class ChildReply:
    """One answer."""

    fact: Json  #: plain JSON
    arrays: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)  #: data too large for JSON, by name


#: What the child does with one request: gives answers, one after the other, and calls `tick` with how many frames are
#: done, and with 0 in the middle of what takes long. It is sent to the child once, so it holds only settings.
Operation = Callable[[Json, Callable[[int], None]], Iterator[ChildReply]]


class Child:
    """A process that does one operation, request after request, and is restarted after it has died.

    Args:
        task: names the operation, such as "its encoding", in messages about a child's death.
    """

    def __init__(self, operation: Operation, limits: ChildLimits, *, task: str = "the work on it") -> None:
        self._operation, self._limits, self._task = operation, limits, task
        self._process: multiprocessing.process.BaseProcess | None = None
        self._ours: Connection | None = None
        self._hangs = False

    def ask(self, request: Json, *, megapixels: float) -> Iterator[ChildReply | int]:
        """The child's answers to one request, and the numbers of frames as they are done.

        Args:
            megapixels: the amount of work, for the limit on processor time; see `media_pipeline.megapixels`.

        Raises:
            ChildDied: it died over this request; the next one gets a new child.
        """
        connection = self._connection()
        cpu_s = self._limits.cpu_s + self._limits.cpu_s_per_megapixel * max(0.0, megapixels)
        try:
            _send(connection, {"request": request, "cpu_s": math.ceil(cpu_s)})
            while (answer := self._receive(connection)) is not None:
                yield answer
        except (EOFError, OSError) as error:
            raise ChildDied(self._why(cpu_s)) from error
        except (DataError, UserError):  # raised by the operation: the child is ready for the next request
            raise
        except BaseException:  # the caller left: the remaining answers would be taken for those to the next request
            self.stop()
            raise

    def stop(self) -> None:
        """End the process, at once."""
        if self._process is not None and self._ours is not None:
            end_children([(self._process, self._ours)])
        self._process = self._ours = None

    def _connection(self) -> Connection:
        if self._process is not None and self._process.is_alive() and self._ours is not None:
            return self._ours
        self.stop()
        self._hangs = False
        # Not a fork: it would take over open files, locks that other threads hold, and a CUDA context that cannot live.
        context: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")
        if "forkserver" in multiprocessing.get_all_start_methods():
            # Forks of a small server that has imported only what children need: a child starts in 20 ms, not 1 s.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["nemo_vfm.curate.examine.sandbox", "nemo_vfm.curate.output.transcode"])
        with _STARTING:
            # The child does not import this program's main module anew, unless a stage is written in that script: one
            # that imports torch cost every child 1.5 s, and two processes were 1.3 times as quick as one, not 1.6.
            main = sys.modules["__main__"]
            if b"__main__" not in bytes(ForkingPickler.dumps(self._operation)):
                sys.modules["__main__"] = ModuleType("__main__")
            try:
                child = start_child(_serve, self._operation, self._limits, context=context)
            finally:
                sys.modules["__main__"] = main
        self._process, self._ours = child
        return self._ours

    def _receive(self, connection: Connection) -> ChildReply | int | None:
        """A reply, a number of frames done, or None at the end of a request."""
        answer = json.loads(self._bytes(connection))
        match answer:
            case {"tick": int(count)}:
                return count
            case {"end": True}:
                return None
            case {"error": str(text)}:
                raise DataError(text)
            case {"full": str(text)}:
                raise UserError(f"{text}; free disk space and run the same command again to resume")
        arrays = {}
        for name, shape in answer["arrays"]:
            arrays[str(name)] = np.frombuffer(self._bytes(connection), np.uint8).reshape(shape)
        return ChildReply(answer["fact"], arrays)

    def _bytes(self, connection: Connection) -> bytes:
        spent_s = self._spent_s()
        while not connection.poll(self._limits.silence_s):
            before_s, spent_s = spent_s, self._spent_s()
            if spent_s - before_s < _AT_WORK * self._limits.silence_s:
                self._hangs = True
                if self._process is not None:
                    self._process.kill()
                raise TimeoutError
        return connection.recv_bytes()

    def _spent_s(self) -> float:
        """Processor seconds that the child has used."""
        try:
            times = psutil.Process(None if self._process is None else self._process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def _why(self, cpu_s: float) -> str:
        """How the child died, as a sentence for the ledger: the same for the same file on every machine."""
        process = self._process
        if process is None:
            return f"{self._task} was stopped"
        process.join(5.0)
        code = process.exitcode
        self.stop()
        if code == -signal.SIGXCPU:
            return (
                f"{self._task} took more than {cpu_s:,.0f} s of processor time; to allow more, raise "
                "limits.cpu_s_per_megapixel"
            )
        if self._hangs:
            return (
                f"{self._task} hung: it gave no sign of life for {self._limits.silence_s:g} s and used no "
                "processor time"
            )
        if code == -signal.SIGKILL:
            return f"the system killed {self._task}, probably for lack of memory; use more memory or fewer workers"
        return f"{self._task} {how_it_ended(code)}"


@dataclass(frozen=True, slots=True)
class InProcess:
    """An operation in this process, without limits: for debuggers and profilers, which do not follow a child."""

    _operation: Operation

    def ask(self, request: Json, *, megapixels: float) -> Iterator[ChildReply | int]:
        """See `Child.ask`; frames are reported with the reply after them."""
        ticks: list[int] = []
        for reply in self._operation(request, ticks.append):
            yield sum(ticks)
            ticks.clear()
            yield ChildReply(json.loads(json.dumps(reply.fact)), reply.arrays)
        yield sum(ticks)

    def stop(self) -> None:
        """There is nothing to end."""


def _serve(connection: Connection, operation: Operation, limits: ChildLimits) -> None:
    """Run in the child until the parent closes the connection."""
    # Not by the kernel: the forks' own parent is their server, which lives as long as one of them, hung or not.
    follow_parent()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit is then an error with words
    # RLIMIT_DATA and not RLIMIT_AS: libraries map gigabytes that take no memory.
    memory, file = int(limits.memory_gb * 1e9), int(limits.file_gb * 1e9)
    lower_limits({resource.RLIMIT_DATA: memory, resource.RLIMIT_FSIZE: file, resource.RLIMIT_CORE: 0})
    # Sums over stripes of a picture depend, in their last digits, on how many threads share them.
    cv2.setNumThreads(0)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            asked = json.loads(connection.recv_bytes())
            # So many seconds from now on. Only the soft limit: a hard one could not be raised for the next file.
            cpu_s = asked["cpu_s"]
            used = resource.getrusage(resource.RUSAGE_SELF)
            spent = math.ceil(used.ru_utime + used.ru_stime)
            hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
            soft = spent + cpu_s if hard == resource.RLIM_INFINITY else min(spent + cpu_s, hard)
            resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
            _answer(connection, operation, asked["request"])


def _answer(connection: Connection, operation: Operation, request: Json) -> None:
    pulse = TickBatcher(lambda count: _send(connection, {"tick": count}))
    try:
        for reply in operation(request, pulse.tick):
            shapes = [[name, array.shape] for name, array in reply.arrays.items()]
            _send(connection, {"fact": reply.fact, "arrays": shapes})
            for array in reply.arrays.values():
                connection.send_bytes(np.ascontiguousarray(array, dtype=np.uint8).data.cast("B"))
        pulse.tick(0, is_last=True)
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except MemoryError:
        _send(connection, {"error": "it needs more memory than limits.memory_gb allows"})
    except Exception as error:
        _send(connection, {"full" if is_full(error) else "error": str(error) or type(error).__name__})
    else:
        _send(connection, {"end": True})


class TickBatcher:
    """Gathers ticks, and passes them on every 48 frames and at least every second that there is one.

    Args:
        say: called with the number of frames that were done; 0 shows that the child is alive.
        clock: seconds since any moment.
    """

    def __init__(self, say: Callable[[int], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._done, self._said_s = 0, clock()

    def tick(self, count: int, *, is_last: bool = False) -> None:
        """Count frames that are done; the last call passes on the rest."""
        self._done += count
        is_due = self._done >= _TICKS_EVERY or self._clock() - self._said_s >= _TICKS_EVERY_S
        if self._done > 0 if is_last else is_due:
            self._say(self._done)
            self._done, self._said_s = 0, self._clock()


def _send(connection: Connection, value: Json) -> None:
    connection.send_bytes(json.dumps(value, allow_nan=False).encode())


@dataclass(frozen=True, slots=True)
class MediaWork:
    """The settings of work on media in a child process."""

    operation: Operation  #: what is done with each item's request
    limits: ChildLimits = field(default_factory=ChildLimits)  #: what the child may take
    task: str = "the work on it"  #: see `Child`

    def start(self, *, isolated: bool = True) -> Worker:
        """See `Work.start`; the child itself starts with the first item."""
        return _MediaWorker(
            Child(self.operation, self.limits, task=self.task) if isolated else InProcess(self.operation)
        )


@dataclass(slots=True)
class _MediaWorker:
    """Yields `ChildReply`s. One whose fact has `failed` says why the item ends there; one with `again` makes the item's
    earlier parts void, since the item was started again."""

    _child: Child | InProcess
    _stopped: bool = False

    def do(self, item: object) -> Iterator[object]:
        assert isinstance(item, WorkItem)
        if self._stopped:
            yield ChildReply({"failed": "its work was stopped"})
            return
        for attempt in (1, 2):
            try:
                for answer in self._child.ask(item.request, megapixels=item.megapixels):
                    yield Tick(answer) if isinstance(answer, int) else answer
                return
            except ChildDied as error:
                # The file before it may have damaged the child: a second, fresh child shows which file it was.
                again = attempt == 1 and not self._stopped
                yield ChildReply({"again": True} if again else {"failed": str(error)})
                if not again:
                    return
            except DataError as error:
                yield ChildReply({"failed": str(error)})
                return

    def stop(self) -> None:
        """End the child for good: otherwise a thread in the middle of an item would restart it in a new child."""
        self._stopped = True
        self._child.stop()


def keep_last(parts: list[object]) -> list[ChildReply]:
    """An item's replies, without those of an abandoned attempt."""
    replies = [part for part in parts if isinstance(part, ChildReply)]
    last = max((place for place, reply in enumerate(replies) if reply.fact.get("again")), default=-1)
    return replies[last + 1 :]
