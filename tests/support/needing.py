"""Defines jobs that need a file or optional packages, and records what became of them."""

import os
import signal
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import GIVEN, needs_packages
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import JobShard, Outcome, Run
from nemo_vfm.core.types.job import Needs as JobNeeds


class Needs:
    """Leaves a note in its folder, or fails while a file is missing.

    Args:
        path: the file; None needs nothing.
    """

    def __init__(self, *, path: Path | None = None) -> None:
        self.path = path

    def run(self, run: Run) -> Outcome:
        if self.path is not None and not self.path.exists():
            raise UserError(f"{self.path} is not there yet")
        (run.folder / "ran").touch()
        return Outcome("ran")


class DiesFirst:
    """Is killed on its first tries, and then leaves a note in its folder.

    Args:
        tries: how many.
        sleeps_at: the try on which it waits for ever; 0 is none.
    """

    def __init__(self, *, tries: int = 1, sleeps_at: int = 0) -> None:
        self.tries, self.sleeps_at = tries, sleeps_at

    def run(self, run: Run) -> Outcome:
        with (run.folder / "tries").open("a+") as file:
            file.write("x")
            file.flush()
            if file.tell() <= self.tries:
                os.kill(os.getpid(), signal.SIGKILL)
            if file.tell() == self.sleeps_at:
                signal.pause()
        (run.folder / "ran").touch()
        return Outcome("ran")


class PartsNeed:
    """Parts that each leave a note; some of them fail while a file is missing.

    Args:
        path: the file.
        which: the parts that need it.
    """

    def __init__(self, *, path: Path, which: list[int]) -> None:
        self.path, self.which = path, which

    def run(self, run: Run) -> Outcome:
        notes = len(list((run.folder / "notes").iterdir()))
        return Outcome(f"{notes} notes", {"notes": notes})

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> JobNeeds:
        return JobNeeds(rounds=1)

    def run_part(self, run: Run, part: JobShard) -> Outcome:
        if part.number in self.which and not self.path.exists():
            raise UserError(f"{self.path} is not there yet")
        (run.folder / "notes").mkdir(exist_ok=True)
        with (run.folder / "notes" / str(part.number)).open("a") as file:
            file.write("x")
        return Outcome(f"part {part.number}")


@needs_packages("tokenizers")
class Words:
    """A component that needs a package."""


@needs_packages("jsonschema", where={"kind": "strict"})
@needs_packages("wandb", where={"board": GIVEN})
class Wants:
    """Leaves a note in its folder; what it needs depends on its arguments.

    Args:
        kind: strict needs jsonschema.
        board: any needs wandb.
        words: needs what it needs.
        late: the same, of a factory.
        listed: the same.
        stores: addresses in an object store; Google's needs gcsfs.
    """

    def __init__(
        self, *, kind: str = "strict", board: str | None = None, words: Words | None = None,
        late: Factory[[], Words] | None = None, listed: list[Words] = [], stores: list[Address] = [],  # noqa: B006
    ) -> None:  # fmt: skip
        self.kind, self.board, self.words, self.late, self.listed = kind, board, words, late, listed
        self.stores = stores

    def run(self, run: Run) -> Outcome:
        (run.folder / "ran").touch()
        return Outcome("ran")


@needs_packages("transformer_engine", on_gpu=True)
class WantsOnGpu(Wants):
    """What it is derived from, and a package that only a GPU is for."""
