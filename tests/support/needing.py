# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A job, by itself or in parts, that fails until a file is there in; what became of it, and when, out."""

from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types import Outcome, Part, Run


class Needs:
    """Leaves a note in its folder, or fails while a file is missing.

    Args:
        path: the file; None needs nothing.
    """

    def __init__(self, *, path: Path | None = None) -> None:
        self.path = path

    def run(self, run: Run) -> Outcome:
        """Note it."""
        if self.path is not None and not self.path.exists():
            raise UserError(f"{self.path} is not there yet")
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
        """Count the notes."""
        notes = len(list((run.folder / "notes").iterdir()))
        return Outcome(f"{notes} notes", {"notes": notes})

    def rounds(self) -> int:
        """See `Parted`."""
        return 1

    def run_part(self, run: Run, part: Part) -> Outcome:
        """Note it."""
        if part.number in self.which and not self.path.exists():
            raise UserError(f"{self.path} is not there yet")
        (run.folder / "notes").mkdir(exist_ok=True)
        with (run.folder / "notes" / str(part.number)).open("a") as file:
            file.write("x")
        return Outcome(f"part {part.number}")
