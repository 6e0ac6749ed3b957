"""Turns signals and Ctrl-C into a request to stop: jobs that can save stop after their step, others at once.

A signal may arrive between any two lines. So a job that has something to save declares that it will ask
(`handle_signals`), and the handler only raises a flag for it. The second signal does not wait.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from nemo_vfm.core.errors import Interrupted, Preempted, UserError

EXIT_CODE = Preempted.exit_code
INTERRUPTED = Interrupted.exit_code
DEFAULT = ("TERM", "USR1")


class PreemptedNow(BaseException):  # as KeyboardInterrupt: nothing between here and the command line may swallow it
    """Raised on preemption when there is nothing to save, or on a second signal."""


_SIGNALS: list[str] = []
_HEEDED: list[str] = []
_LISTENING: list[signal.Signals] = []


def pending_signal() -> str | None:
    """The name of the signal that wished for an end; None where none came."""
    return _SIGNALS[0] if _SIGNALS else None


def urgency() -> float:
    """How to end: 0 not at all, 1 as the scheduler asked, 2 as Ctrl-C did. Ranks agree on the greatest."""
    return 0.0 if not _SIGNALS else 2.0 if _SIGNALS[0] == signal.SIGINT.name else 1.0


def preempted_error(urgency: float, what: str) -> Preempted:
    """The error that ends a job at a good moment; `what` is such as "at step 5; its checkpoint is in FOLDER"."""
    return Interrupted(f"interrupted {what}") if urgency > 1 else Preempted(f"a signal stopped the run {what}")


def idle_error(error: BaseException) -> Preempted:
    """The error that ends a run which a signal, or a Ctrl-C, met while no job was at work."""
    by = "interrupted" if is_interrupt(error) else f"stopped by {error}"
    kind = Interrupted if is_interrupt(error) else Preempted
    return kind(f"{by} while no work was in progress; run the same command again to resume")


@contextmanager
def handle_signals(promise: str = "") -> Iterator[None]:
    """The block asks `asked()` again and again, and ends soon after it says yes; a first Ctrl-C is told the promise."""
    _HEEDED.append(promise)
    try:
        yield
    finally:
        _HEEDED.pop()


def is_interrupt(error: BaseException) -> bool:
    """Whether it is a Ctrl-C; Lightning answers one with `exit(1)`."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt)


def numbers(names: Sequence[str]) -> list[signal.Signals]:
    """Signals by name, with or without SIG.

    Raises:
        ValueError: there is no such signal, or it cannot be handled.
    """
    found = []
    for name in names:
        whole = f"SIG{name.upper().removeprefix('SIG')}"
        number = getattr(signal.Signals, whole, None) if whole in signal.Signals.__members__ else None
        if number is None or number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGINT):
            raise ValueError(f"{name} is not a signal that can stop a run; use TERM, USR1 or USR2")
        found.append(number)
    return found


@contextmanager
def listen_for_signals(names: Sequence[str] = DEFAULT) -> Iterator[None]:
    """Listen to these signals, and to Ctrl-C, while the block runs; in another than the main thread nothing is heard.

    Ctrl-C is left alone where it is ignored, as it is in a shell's background jobs.

    Raises:
        Preempted: a signal came that the block did not answer itself.
        UserError: there is no such signal, or it cannot be handled.
    """
    try:
        listened = numbers(names)
    except ValueError as error:
        raise UserError(str(error)) from error
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _SIGNALS.clear()
    ctrl_c = [] if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else [signal.SIGINT]
    _LISTENING[:] = [*listened, *ctrl_c]
    before = {number: signal.signal(number, _hear) for number in _LISTENING}
    try:
        yield
    except (PreemptedNow, Exception) as error:
        came: BaseException = error  # or what it hides: what is imported may make an error of its own of any other
        while not isinstance(came, PreemptedNow | KeyboardInterrupt | Preempted) and came.__context__ is not None:
            came = came.__context__
        if not isinstance(came, PreemptedNow | KeyboardInterrupt):
            raise
        raise idle_error(came) from error
    finally:
        _SIGNALS.clear()  # what comes next in this process was not asked to end
        _LISTENING.clear()
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None], signals: Iterable[int]) -> Iterator[None]:
    """Call the handler for each of these signals while the block runs; what is ignored stays ignored."""
    heard = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def listen_again() -> None:
    """Take the signals back from a library that put handlers of its own over ours; nothing where we do not listen."""
    if threading.current_thread() is threading.main_thread():
        for number in _LISTENING:
            signal.signal(number, _hear)


def _hear(number: int, frame: FrameType | None) -> None:
    _SIGNALS.append(signal.Signals(number).name)
    if not _HEEDED or len(_SIGNALS) > 1:
        raise KeyboardInterrupt if number == signal.SIGINT else PreemptedNow(_SIGNALS[-1])
    if number == signal.SIGINT and _HEEDED[-1] and os.environ.get("RANK", "0") == "0":
        os.write(2, f"\n{_HEEDED[-1]}\n".encode())  # a stream may be in the middle of a write, and takes no other then
