"""Defines the result of one check of the machine; its texts hold nothing private."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nemo_vfm.core.secret import conceal
from nemo_vfm.core.types.json_value import Json

#: ok; low: works, but too little of it; missing: not there; broken: there, and does not work.
State = Literal["ok", "low", "missing", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """How one thing was found.

    Args:
        group: what it is for.
        name: the thing.
        detail: what was seen.
        hint: what to do; empty where nothing is to be done.
        needed: without it nothing works here.
    """

    group: str
    name: str
    state: State
    detail: str
    hint: str = ""
    needed: bool = False

    @property
    def stops(self) -> bool:
        """Whether it must be put right first."""
        return self.needed and self.state in ("missing", "broken")

    def to_json(self) -> Json:
        """Without secrets and home folders, as everything that is shown."""
        return {"group": self.group, "name": self.name, "state": self.state, "needed": self.needed,
                "detail": paste_ready(self.detail), "hint": paste_ready(self.hint)}  # fmt: skip


def paste_ready(text: str) -> str:
    """The text without secrets, without the user's home folder, on one line."""
    home = str(Path.home())
    text = conceal(" ".join(text.split()))
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?=[/:\s'\"]|$)", "~", text)
    return re.sub(r"/(home|Users)/[^/\s'\":]+", "~", text)
