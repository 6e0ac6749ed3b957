"""Runs programs as a model answers questions: they are paced and journaled, and hold up no other row."""

import json
import platform
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.chat import ChatAnswer
from nemo_vfm.core.network.endpoint import EndpointFault
from nemo_vfm.core.network.permission import UserOnly
from nemo_vfm.core.process import num_cores
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.checks.limited_child import Ending, Limits, protections, run_python

_MAX_STDERR = 1500  # letters of its end, where the error stands


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """What is kept of a program that was run."""

    ending: Ending
    reached_end: bool
    stdout: str
    stderr: str  #: its last letters

    @property
    def passed(self) -> bool:
        """Whether it ran to its last line: all its assertions hold."""
        return self.ending == "ok" and self.reached_end


def end_in(answer: str) -> ProgramEnd:
    """What an answer of `ProgramModel` says.

    Raises:
        UserError: another model gave it.
    """
    try:
        return ProgramEnd(**json.loads(answer))
    except (ValueError, TypeError, RecursionError):
        raise UserError(
            f"a program should have been run, but the answer does not report a run: {answer[:80]!r}; give "
            f"models.python = {ProgramModel.__module__}.ProgramModel"
        ) from None


class ProgramModel:
    """Runs the Python program that is the last message, in a limited child; its answer is the JSON of a `ProgramEnd`.

    Args:
        limits: of each program.
        at_once: programs that run at the same time; the others wait, and no limit of time counts that. None takes the
            cores that this process may use: more would make programs late that are not slow.
        strict: refuse to run programs where files, network or processes cannot be limited. Only the command line can
            say false.
    """

    def __init__(
        self, *, limits: Limits = Limits(), at_once: int | None = None, strict: Annotated[bool, UserOnly(False)] = True
    ) -> None:
        if at_once is not None and at_once < 1:
            raise ValueError(f"at_once is {at_once}; it must be at least 1")
        self.limits, self.at_once, self.strict = limits, at_once, strict
        self._places = threading.BoundedSemaphore(at_once or num_cores())

    def ready(self) -> None:
        """Raise UserError where no program can be run."""
        if self.strict and not ((found := protections()).files and found.network and found.processes):
            raise UserError(
                "programs written by a model run only where files, network and processes can be limited; of these "
                f"protections, this machine has: {', '.join(found.layers) or 'none'}; use a Linux with Landlock and "
                "seccomp or, on a disposable machine, set its strict=false on the command line"
            )

    def place(self) -> str:
        """All programs share the cores."""
        return "programs on this machine"

    def is_free(self) -> bool:
        """It takes no tokens."""
        return True

    def identity(self) -> Json:
        """See `ChatModel`: the version of Python, and the limits."""
        return ["python", platform.python_version(), asdict(self.limits)]

    def say(self, messages: Sequence[Json]) -> ChatAnswer:
        """How the program ended.

        Raises:
            EndpointFault: it could not be started.
        """
        with self._places:
            try:
                done = run_python(str(messages[-1]["content"]), limits=self.limits, strict=self.strict)
            except OSError as error:
                raise EndpointFault(f"the program could not be started: {error}") from None
        if done.ending == "refused":
            raise EndpointFault(f"the program was not run: {done.stderr}")
        end = ProgramEnd(done.ending, done.reached_end, done.stdout, done.stderr[-_MAX_STDERR:])
        text = json.dumps(asdict(end), ensure_ascii=False)
        return ChatAnswer(text, "success", f"python {platform.python_version()}", "", 0, 0, done.seconds)
