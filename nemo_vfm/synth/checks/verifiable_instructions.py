"""Draws instructions that can hold together, and checks whether an answer obeys them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from nemo_vfm.core.errors import UserError
from nemo_vfm.synth.checks.answer_measures import occurrences, words
from nemo_vfm.synth.checks.instruction_kinds import KINDS, WORDS

#: Draws of one kind before another is tried: its values may not fit those already drawn.
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, as it is said and as it is checked.

    Args:
        kind: of `KINDS`.
        values: what it asks for, as JSON.
        text: the sentence.
    """

    kind: str
    values: Mapping[str, Any]
    text: str

    def holds(self, answer: str) -> bool:
        """Whether an answer obeys; one without a word never does."""
        return bool(words(answer)) and KINDS[self.kind].holds(answer, self.values)

    def row(self) -> dict[str, Any]:
        """As JSON, for the row that it belongs to; `instruction_of` reads it."""
        return {"kind": self.kind, "values": dict(self.values), "text": self.text}


def instruction_of(row: Mapping[str, Any]) -> Instruction:
    """The instruction that a row holds.

    Raises:
        UserError: its kind is none of ours.
    """
    if row["kind"] not in KINDS:
        raise UserError(f"there is no kind of instruction {row['kind']!r}; known are {', '.join(KINDS)}")
    return Instruction(row["kind"], row["values"], row["text"])


def draw(
    rng: Random,
    count: int,
    *,
    prompt: str = "",
    bank: Sequence[str] = WORDS,
    kinds: Collection[str] | None = None,
) -> list[Instruction]:
    """Instructions, each of another kind, for which there is an answer that obeys all.

    Args:
        rng: the same state gives the same instructions.
        count: how many; there are fewer where no other kind fits those drawn.
        prompt: that they will follow. One in several lines, and none, is never asked to be repeated.
        bank: at least four words, without spaces, that an answer may be asked to use or to avoid.
        kinds: to draw from; None means all.

    Raises:
        UserError: a kind is none of ours, or `bank` is too small.
    """
    if unknown := {*(kinds or ())} - {*KINDS}:
        raise UserError(f"there is no kind of instruction {sorted(unknown)[0]!r}; known are {', '.join(KINDS)}")
    if len({*bank}) < 4:
        raise UserError(f"a bank of {len({*bank})} words is too small to draw instructions from; give at least 4")
    names = [name for name in KINDS if kinds is None or name in kinds]
    if not prompt.strip() or "\n" in prompt.strip():
        names = [name for name in names if name != "repeat_prompt"]
    rng.shuffle(names)
    found: list[Instruction] = []
    for name in names:
        if len(found) == count:
            break
        found += _fitting(rng, name, found, prompt, bank)
    return found


def _fitting(
    rng: Random, name: str, others: Sequence[Instruction], prompt: str, bank: Sequence[str]
) -> list[Instruction]:
    """One of this kind that can hold beside the others; empty where none is found."""
    for _ in range(_TRIES):
        values = KINDS[name].draw(rng, bank, prompt)
        drawn = Instruction(name, values, _said(rng.choice(KINDS[name].wordings), values))
        if hold_together([*others, drawn]):
            return [drawn]
    return []


def _said(wording: str, values: Mapping[str, Any]) -> str:
    """The wording with its values; a prompt is never repeated in it."""
    return wording.format_map({name: _quoted(name, value) for name, value in values.items()})


def _quoted(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(f'"{one}"' for one in value)
    return f'"{value}"' if isinstance(value, str) and name != "marker" else str(value)


def hold_together(instructions: Sequence[Instruction]) -> bool:
    """Whether one answer can obey all of them.

    It looks at pairs of kinds, at bounds from both sides, and at texts that one asks for and another forbids.
    """
    names = [one.kind for one in instructions]
    if len({*names}) < len(names) or ("choice" in names and len(names) > 1):
        return False
    if any(other in KINDS[name].excludes for name in names for other in names if other != name):
        return False
    values = {one.kind: one.values for one in instructions}
    fixed = [text for one in instructions for text in KINDS[one.kind].fixed(one.values)]
    return _bounds_meet(values) and _allowed(values, fixed)


def _bounds_meet(values: Mapping[str, Mapping[str, Any]]) -> bool:
    for what in ("words", "sentences", "letters"):
        low, high = values.get(f"min_{what}"), values.get(f"max_{what}")
        if low and high and low.get("letter") == high.get("letter") and low["count"] > high["count"]:
            return False
    return True


def _allowed(values: Mapping[str, Mapping[str, Any]], fixed: Sequence[str]) -> bool:
    """Whether no text that must be there is forbidden, and no letter is in those more often than it may."""
    avoided = values.get("avoid_words", {}).get("words", ())
    if any(occurrences(word, text) for word in avoided for text in fixed):
        return False
    if (letters := values.get("max_letters")) is None:
        return True
    return bool("".join(fixed).lower().count(letters["letter"]) <= letters["count"])
