"""Parses text such as "400 steps" into a Duration with a unit: a length of training that cannot be misread."""

import math
import re
from dataclasses import dataclass
from typing import Literal, Self, get_args

from nemo_vfm.core.errors import UserError

Unit = Literal["steps", "epochs", "samples", "tokens", "s", "h"]
_WORDS: dict[str, Unit] = {
    "step": "steps", "epoch": "epochs", "sample": "samples", "token": "tokens", "hour": "h", "hours": "h",
    "second": "s", "seconds": "s", "min": "s", "minutes": "s",
}  # fmt: skip
_TEXT = re.compile(r"(\d[\d_]*(?:\.\d+)?(?:[eE]\+?\d+)?)\s*([a-z]+)")


@dataclass(frozen=True, slots=True)
class Duration:
    """An amount and its unit.

    Args:
        amount: how many, above zero.
        unit: steps (optimizer steps), epochs, samples, tokens, s (seconds) or h (hours).
    """

    amount: float
    unit: Unit

    def __post_init__(self) -> None:
        if not 0 < self.amount < float("inf"):
            raise UserError(f"a duration must be above zero and finite, got {self.amount} {self.unit}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "400_000 steps", "2 epochs", "3e9 tokens", "90 s", "5 min" or "12 h".

        Raises:
            UserError: the text is not a number followed by a unit.
        """
        match = _TEXT.fullmatch(text.strip())
        word = match[2] if match else ""
        unit = _WORDS.get(word, word)
        if match is None or unit not in get_args(Unit):
            raise UserError(f"{text!r} is not a duration; write a number and a unit, such as '400 steps' or '2 epochs'")
        amount = float(match[1].replace("_", "")) * (60 if word in ("min", "minutes") else 1)
        return cls(amount, unit)  # type: ignore[arg-type]

    def steps(self, *, samples: float = math.nan, tokens: float = math.nan) -> int | None:
        """Whole optimizer steps, rounded up; None where only the clock or the data know.

        `samples` of a global batch, `tokens` of a sample.
        """
        per_step = {"steps": 1.0, "samples": samples, "tokens": samples * tokens}.get(self.unit)
        return None if per_step is None else max(1, math.ceil(self.amount / per_step - 1e-9))

    def __str__(self) -> str:
        return f"{int(self.amount) if float(self.amount).is_integer() else self.amount} {self.unit}"
