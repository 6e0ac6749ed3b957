"""Drops rows with a turn that is too short or too long."""

from typing import Literal

from nemo_vfm.dedup.texts.normalize_text import words
from nemo_vfm.synth.filters.turn_texts import Turns, require_turns, turns_of
from nemo_vfm.synth.programs.row_program import Draft


class TextLength:
    """Keeps rows whose every turn has a length within bounds.

    Args:
        least: of a turn.
        most: of a turn; None bounds nothing.
        unit: words (a Chinese or Japanese character is one), or characters.
        turns: that are checked, each by itself.
    """

    def __init__(
        self, *, least: int = 1, most: int | None = None, unit: Literal["words", "characters"] = "words",
        turns: Turns = "assistant",
    ) -> None:  # fmt: skip
        require_turns(turns)
        if least < 0 or (most is not None and most < max(1, least)):
            raise ValueError(f"least {least} must be at least 0, and most {most} at least 1 and not below least")
        if unit not in ("words", "characters"):
            raise ValueError(f"unit is {unit!r}; take words or characters")
        self.least, self.most, self.unit, self.turns = least, most, unit, turns

    def broken_rule(self, draft: Draft) -> str | None:
        """See `RowFilter`."""
        texts = turns_of(draft, self.turns)
        lengths = [len(words(text)) if self.unit == "words" else len(text.strip()) for text in texts]
        if min(lengths, default=0) < self.least:
            return f"fewer than {self.least:,} {self.unit} in a turn"
        if self.most is not None and max(lengths, default=0) > self.most:
            return f"more than {self.most:,} {self.unit} in a turn"
        return None
