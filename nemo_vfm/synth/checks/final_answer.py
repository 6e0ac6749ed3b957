"""Finds the answer of a solution to a mathematical problem, and says whether two answers are equal."""

import re
from dataclasses import dataclass
from fractions import Fraction

from nemo_vfm.core.network.thought import split_thought
from nemo_vfm.synth.checks.math_value import Measured, Number, cleaned, measured

_RELATIVE = 1e-6
_MOST_LETTERS, _MOST_ITEMS = 500, 50
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|\S+)")
_MARKED = re.compile(r"^[ \t]*####[ \t]*(?=\S)", re.MULTILINE)
_SAID = re.compile(r"\banswer(?:\s+is)?\s*(?:is|are|:|=)\**[ \t]*+(?::[ \t]*+)?(?=\S)", re.IGNORECASE)
_CHOICE = re.compile(r"\(([A-Ja-j])\)(?:[.:]?\s.*)?|([A-J])(?:[.:)](?:\s.*)?)?", re.DOTALL)
_NAMED = re.compile(r"[A-Za-z]\w{0,3}(?:\([a-z]\))?\s*=(?!=)\s*")
_BEFORE = re.compile(r"(?:about|approximately|exactly|roughly)\s+", re.IGNORECASE)
_NUMBER_IN_TEXT = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?%?")
_LETTER_UNITS = "mgshLlNJWVAKCF"
_GLUED = {
    "cm",
    "mm",
    "km",
    "kg",
    "mg",
    "ml",
    "mL",
    "min",
    "hr",
    "hrs",
    "ft",
    "in",
    "lb",
    "lbs",
    "oz",
    "mph",
    "am",
    "pm",
}
_WORD = r"[A-Za-z]+\.?(?:\s?\^?\{?-?[23]\}?)?"
_UNIT = re.compile(rf"{_WORD}(?:(?:\s*/\s*|\s+){_WORD}){{0,4}}")
_NO_UNITS = {"and", "or", "if", "when", "where", "sin", "cos", "tan", "log", "ln", "mod", "to", "is", "for", "times"}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_TRUTHS = ({"yes", "true"}, {"no", "false"})


@dataclass(frozen=True, slots=True)
class _Several:
    """Several values. Between brackets their order counts, else not."""

    items: tuple["_Value", ...]
    brackets: str


@dataclass(frozen=True, slots=True)
class _Said:
    """A choice letter or other text."""

    text: str
    choice: bool


_Value = Measured | _Several | _Said


def final_answer(solution: str) -> str | None:
    r"""The answer that a solution ends with, as it is written there.

    It is the last \boxed{...}, else a value after the last ####, else the last "answer is ...", else the last line, if
    that is a value, has one after its last =, or holds one number.

    What a reasoning model thinks before it, in <think>...</think>, is no part of the solution.

    Returns:
        None where none of these is found.
    """
    text = split_thought(solution)[1].strip()
    if boxes := [*_BOX.finditer(text)]:
        return _boxed(text, boxes[-1])  # one that is not closed was cut, and what is in it is no answer
    marked = _after_last(_MARKED, text)
    if marked and _is_value(marked):  # other lines after #### are headings of markdown
        return marked
    return _after_last(_SAID, text) or _of_last_line(text)


def same_answer(first: str, second: str) -> bool | None:
    """Whether two answers are equal; fractions exactly, others within a relative 1e-6.

    Units are left aside. A percentage equals both its fraction and its number: 50% is 0.5, and is 50.

    Returns:
        None where one cannot be read, or they are of kinds that do not compare, such as a number and a choice letter.
    """
    one, other = _value(first), _value(second)
    return None if one is None or other is None else _same(one, other)


def _boxed(text: str, box: re.Match[str]) -> str | None:
    begin, depth = box.end(), 1
    if box[1] != "{":
        return box[1].strip("$.") or None
    for at in range(begin, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[begin:at].strip() or None
    return None


def _after_last(mark: re.Pattern[str], text: str) -> str | None:
    """The sentence after the last mark; up to the end of its line."""
    ends = [match.end() for match in mark.finditer(text)]
    return _trimmed(text[ends[-1] :].partition("\n")[0]) or None if ends else None


def _trimmed(text: str) -> str:
    """The first sentence, without marks around it."""
    text = re.split(r"(?<![A-Z])[.!?](?:\s|$)", text.strip().strip("*"), maxsplit=1)[0]
    return text.strip().strip("*_`").strip().rstrip(".,;").strip()


def _of_last_line(text: str) -> str | None:
    line = _trimmed(text.splitlines()[-1]) if text else ""
    if _is_value(line):
        return line
    after = _trimmed(line.rpartition("=")[2]) if "=" in line else ""
    if after and isinstance(_value(after), Measured):
        return after
    numbers = _NUMBER_IN_TEXT.findall(line)
    return str(numbers[0]).rstrip(",") if len(numbers) == 1 else None


def _is_value(text: str) -> bool:
    value = _value(text)
    return value.choice if isinstance(value, _Said) else value is not None


def _value(text: str) -> _Value | None:
    """What an answer means; None for nothing, or too much."""
    if len(text) > _MOST_LETTERS:
        return None
    text = _BEFORE.sub("", cleaned(text).strip().rstrip(".,;").strip())
    if match := _CHOICE.fullmatch(text):
        return _Said((match[1] or match[2]).upper(), True)
    return _number(text) or _several(text) or (_Said(text.casefold(), False) if text else None)


def _number(text: str) -> Measured | None:
    if match := _NAMED.match(text):
        text = text[match.end() :]
    if (found := measured(text)) is None:
        return None
    unit = found.unit
    glued = not text[: len(text) - len(unit)].endswith(" ")
    scale = _SCALES.get(unit.partition(" ")[0].lower(), 1)
    if not unit or unit == "%" or unit.lower().startswith(("percent", "per cent")):
        return Measured(found.number, "%" if unit else "")
    return Measured(found.number * scale, "") if scale > 1 or _is_unit(unit, glued) else None


def _is_unit(text: str, glued: bool) -> bool:
    if not _UNIT.fullmatch(text):
        return False
    first = re.split(r"[^A-Za-z]", text)[0]
    if len(first) == 1:
        return first in _LETTER_UNITS
    return first in _GLUED or (not glued and not {*re.findall(r"[a-z]+", text.lower())} & _NO_UNITS)


def _several(text: str) -> _Several | None:
    brackets = ""
    if len(text) > 1 and text[0] in "([{" and text[-1] in ")]}":
        brackets, text = text[0] + text[-1], text[1:-1]
    between = r"," if brackets else r",\s+(?:and\s+|or\s+)?|\s+(?:and|or)\s+"
    parts = re.split(between, text)
    items = tuple(found for part in parts if (found := _number(part.strip())))
    if not 2 <= len(parts) <= _MOST_ITEMS or len(items) != len(parts):
        return None
    return _Several(items, "" if brackets == "{}" else brackets)


def _same(one: _Value, other: _Value) -> bool | None:
    if isinstance(one, Measured) and isinstance(other, Measured):
        return _same_number(one, other)
    if isinstance(one, _Several) and isinstance(other, _Several):
        return _same_several(one, other)
    if isinstance(one, _Said) and isinstance(other, _Said):
        return _same_text(one, other)
    return False if {type(one), type(other)} == {Measured, _Several} else None


def _same_number(one: Measured, other: Measured) -> bool:
    if _equal(one.number, other.number):
        return True
    if (one.unit == "%") == (other.unit == "%"):
        return False
    percent, plain = (one, other) if one.unit == "%" else (other, one)
    return _equal(percent.number / 100, plain.number)


def _equal(one: Number, other: Number) -> bool:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    return abs(float(one) - float(other)) <= _RELATIVE * max(abs(float(one)), abs(float(other)))


def _same_several(one: _Several, other: _Several) -> bool | None:
    if len(one.items) != len(other.items) or (one.brackets and other.brackets and one.brackets != other.brackets):
        return False
    if one.brackets or other.brackets:
        return all(_same(a, b) for a, b in zip(one.items, other.items, strict=True))
    left = list(other.items)
    for item in one.items:
        if (found := next((i for i, candidate in enumerate(left) if _same(item, candidate)), None)) is None:
            return False
        del left[found]
    return True


def _same_text(one: _Said, other: _Said) -> bool | None:
    """Other texts than choices are known to differ only where one says yes and one says no."""
    if one.choice != other.choice:
        return None
    if one.choice or one.text == other.text:
        return one.text == other.text
    sides = [[text in truth for truth in _TRUTHS] for text in (one.text, other.text)]
    return sides[0] == sides[1] if all(map(any, sides)) else None
