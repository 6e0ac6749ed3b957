"""Defines a job whose ranks count together, and a rank that dies, hangs or diverges as ranks do in the field."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

from nemo_vfm.core import preemption, ranks
from nemo_vfm.core.errors import Preempted, UserError
from nemo_vfm.core.types.job import Needs, Outcome, Run

How = Literal[
    "nothing", "raises", "raises_for_the_user", "exits", "crashes", "is_killed", "is_stopped", "sleeps_in_c",
    "waits_alone", "straggles",
]  # fmt: skip


class Together:
    """Counts to `steps` with every rank in step, a line a step; on one try something happens to one rank.

    Args:
        num: of ranks.
        steps: how far.
        how: what happens.
        who: to which rank.
        at: after which step.
        tries: on so many first attempts.
        pause_s: between two steps.
    """

    def __init__(
        self, *, num: int = 2, steps: int = 4, how: How = "nothing", who: int = 1, at: int = 2, tries: int = 1,
        pause_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.num, self.steps, self.how, self.who, self.at = num, steps, how, who, at
        self.tries, self.pause_s = tries, pause_s

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        return Needs(ranks=self.num)

    def require(self, num_ranks: int) -> None:
        if num_ranks != self.num:
            raise ValueError(f"the plan is for {self.num} devices (shard {self.num}), but there are {num_ranks}")

    def run(self, run: Run) -> Outcome:
        from nemo_vfm.parallel.ranks.process_group import all_reduce_max, everyone_says, now

        file = run.folder / "count"
        first = int(everyone_says(str(len(file.read_text().splitlines()) if file.is_file() else 0))[0])
        (run.folder / f"seen-{ranks.rank()}").write_text(f"{os.getpid()} {run.resume} {run.seed}")
        with preemption.handle_signals():
            for step in range(first, self.steps):
                now(f"prepares step {step}")
                self._happen(run.folder, step)
                now(f"adds up step {step}")
                _, flag = all_reduce_max(float(step), float(preemption.pending_signal() is not None))
                if ranks.is_first():
                    with file.open("a") as opened:
                        opened.write(f"{step}\n")
                if flag and step + 1 < self.steps:
                    raise Preempted(f"preempted at step {step + 1}")
                time.sleep(self.pause_s * (5 if self.how == "straggles" and ranks.rank() == self.who else 1))
        return Outcome(f"counted to {self.steps} on {self.num} ranks", {"steps": self.steps})

    def _happen(self, folder: Path, step: int) -> None:
        tried = folder / "tried"
        count = len(tried.read_text()) if tried.is_file() else 0
        if step != self.at or ranks.rank() != self.who or self.how == "nothing" or count >= self.tries:
            return
        tried.write_text("x" * (count + 1))
        happen(self.how)


def happen(how: How) -> None:
    """Let it come over this process."""
    if how == "raises":
        raise RuntimeError("this rank has a bad day")
    if how == "raises_for_the_user":
        raise UserError("this rank's disk is full; make room")
    if how == "exits":
        os._exit(7)
    if how == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "is_killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "is_stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "sleeps_in_c":
        ctypes.PyDLL(None).sleep(600)  # with Python held
    if how == "waits_alone":
        time.sleep(600)


class Child:
    """A job that starts a process of its own and waits: it must not outlive the run."""

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        return Needs(ranks=2)

    def require(self, num_ranks: int) -> None:
        return None

    def run(self, run: Run) -> Outcome:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        (run.folder / f"pids-{ranks.rank()}.tmp").write_text(f"{os.getpid()} {child.pid}")
        (run.folder / f"pids-{ranks.rank()}.tmp").rename(run.folder / f"pids-{ranks.rank()}")
        time.sleep(300)
        return Outcome("slept")
