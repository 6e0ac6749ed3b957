"""Finds the answer of a solution to a mathematical problem, reads its value, and says whether two answers are equal."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from nemo_vfm.core.network.thought import split_thought

_RELATIVE = 1e-6
_MAX_LETTERS, _MAX_ITEMS = 500, 50
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|\S+)")
_MARKED = re.compile(r"^[ \t]*####[ \t]*(?=\S)", re.MULTILINE)
_SAID = re.compile(r"\banswer(?:\s+is)?\s*(?:is|are|:|=)\**[ \t]*+(?::[ \t]*+)?(?=\S)", re.IGNORECASE)
_CHOICE = re.compile(r"\(([A-Ja-j])\)(?:[.:]?\s.*)?|([A-J])(?:[.:)](?:\s.*)?)?", re.DOTALL)
_NAMED = re.compile(r"[A-Za-z]\w{0,3}(?:\([a-z]\))?\s*=(?!=)\s*")
_BEFORE = re.compile(r"(?:about|approximately|exactly|roughly)\s+", re.IGNORECASE)
_NUMBER_IN_TEXT = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?%?")
_LETTER_UNITS = "mgshLlNJWVAKCF"
_GLUED = {"cm", "mm", "km", "kg", "mg", "ml", "mL", "min", "hr", "hrs", "ft", "in", "lb", "lbs", "oz", "mph", "am",
          "pm"}  # fmt: skip
_WORD = r"[A-Za-z]+\.?(?:\s?\^?\{?-?[23]\}?)?"
_UNIT = re.compile(rf"{_WORD}(?:(?:\s*/\s*|\s+){_WORD}){{0,4}}")
_NO_UNITS = {"and", "or", "if", "when", "where", "sin", "cos", "tan", "log", "ln", "mod", "to", "is", "for", "times"}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_TRUTHS = ({"yes", "true"}, {"no", "false"})
Number = Fraction | float
_MAX_VALUE_LETTERS, _MAX_BITS, _MAX_DEPTH = 300, 4096, 30
_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+")
_SCIENTIFIC = re.compile(r"[eE]([+-]?\d{1,2})(?![\w.])")
_MIXED = re.compile(r"(\d+)\s+(\d+)\s*/\s*(\d+)(?!\s*[\d/])")
_REWRITTEN = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\[dtc]frac", r"\\frac"), (r"\\(?:left|right|displaystyle)(?![a-zA-Z])", ""),
        (r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}", r" \1 "),
        (r"\^\s*+(?:\{\s*+)?\\circ(?:\s*+\})?|\\degree|\u00b0", " "), (r"\{,\}", ","),
        (r"(?<=\d)\\,(?=\d{3}(?!\d))", ""), (r"\\!", ""), (r"\\[,;: ]|~", " "),
        (r"\\[()\[\]]|\\?\$", " "), (r"\\%", "%"), (r"\\(?:cdot|times)(?![a-zA-Z])|[\u00d7\u22c5\u00b7]", "*"),
        (r"\\div(?![a-zA-Z])|\u00f7", "/"), (r"[\u2212\u2013]", "-"), (r"\u221a\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\u221a\s*(\d+)", r"\\sqrt{\1}"), (r"\u03c0|(?<!\\)\bpi\b", r"\\pi"),
        (r"\\(?:approx|sim)(?![a-zA-Z])|\u2248", " "),
        (r"\*\*", " "), (r"[\u00a3\u20ac]", " "), (r"\\([{}])", r"\1"),
    )
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Several:
    """Several values. Between brackets their order counts, else not."""

    items: tuple["_Value", ...]
    brackets: str


@dataclass(frozen=True, slots=True)
class _TextValue:
    """A choice letter or other text."""

    text: str
    choice: bool


@dataclass(frozen=True, slots=True)
class NumberWithUnit:
    """A number with what stood behind it."""

    number: Number  #: exact where it is a fraction, else within floating point
    unit: str  #: such as "cm" or "%"; empty where there is none


_Value = NumberWithUnit | _Several | _TextValue


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
        if boxes[-1][1] != "{":
            return str(boxes[-1][1]).strip("$.") or None
        begin, depth = boxes[-1].end(), 1
        for at in range(begin, len(text)):
            depth += (text[at] == "{") - (text[at] == "}")
            if depth == 0:
                return text[begin:at].strip() or None
        return None  # one that is not closed was cut, and what is in it is no answer
    marked = _after_last(_MARKED, text)
    if marked and _is_value(marked):  # other lines after #### are headings of markdown
        return marked
    if said := _after_last(_SAID, text):
        return said
    line = _first_sentence(text.splitlines()[-1]) if text else ""
    if _is_value(line):
        return line
    after = _first_sentence(line.rpartition("=")[2]) if "=" in line else ""
    if after and isinstance(_value(after), NumberWithUnit):
        return after
    numbers = _NUMBER_IN_TEXT.findall(line)
    return str(numbers[0]).rstrip(",") if len(numbers) == 1 else None


def same_answer(first: str, second: str) -> bool | None:
    """Whether two answers are equal; fractions exactly, others within a relative 1e-6.

    Units are left aside. A percentage equals both its fraction and its number: 50% is 0.5, and is 50.

    Returns:
        None where one cannot be read, or they are of kinds that do not compare, such as a number and a choice letter.
    """
    one, other = _value(first), _value(second)
    return None if one is None or other is None else _same_value(one, other)


def _after_last(mark: re.Pattern[str], text: str) -> str | None:
    """The sentence after the last mark; up to the end of its line."""
    ends = [match.end() for match in mark.finditer(text)]
    return _first_sentence(text[ends[-1] :].partition("\n")[0]) or None if ends else None


def _first_sentence(text: str) -> str:
    """The first sentence, without marks around it."""
    text = re.split(r"(?<![A-Z])[.!?](?:\s|$)", text.strip().strip("*"), maxsplit=1)[0]
    return text.strip().strip("*_`").strip().rstrip(".,;").strip()


def _is_value(text: str) -> bool:
    value = _value(text)
    return value.choice if isinstance(value, _TextValue) else value is not None


def _value(text: str) -> _Value | None:
    """What an answer means; None for nothing, or too much."""
    if len(text) > _MAX_LETTERS:
        return None
    for pattern, new in _REWRITTEN:  # delimiters and spaces of LaTeX, and signs that are written in several ways
        text = pattern.sub(new, text)
    text = _BEFORE.sub("", " ".join(text.split()).rstrip(".,;").strip())
    if match := _CHOICE.fullmatch(text):
        return _TextValue((match[1] or match[2]).upper(), True)
    return _number(text) or _parse_several(text) or (_TextValue(text.casefold(), False) if text else None)


def _number(text: str) -> NumberWithUnit | None:
    if match := _NAMED.match(text):
        text = text[match.end() :]
    if (found := split_number(text)) is None:
        return None
    unit = found.unit
    glued = not text[: len(text) - len(unit)].endswith(" ")
    scale = _SCALES.get(unit.partition(" ")[0].lower(), 1)
    if not unit or unit == "%" or unit.lower().startswith(("percent", "per cent")):
        return NumberWithUnit(found.number, "%" if unit else "")
    if scale == 1:
        first = re.split(r"[^A-Za-z]", unit)[0]
        is_word = not glued and not {*re.findall(r"[a-z]+", unit.lower())} & _NO_UNITS
        is_unit = first in _LETTER_UNITS if len(first) == 1 else first in _GLUED or is_word
        if not is_unit or not _UNIT.fullmatch(unit):
            return None
    return NumberWithUnit(found.number * scale, "")


def _parse_several(text: str) -> _Several | None:
    brackets = ""
    if len(text) > 1 and text[0] in "([{" and text[-1] in ")]}":
        brackets, text = text[0] + text[-1], text[1:-1]
    between = r"," if brackets else r",\s+(?:and\s+|or\s+)?|\s+(?:and|or)\s+"
    parts = re.split(between, text)
    items = tuple(found for part in parts if (found := _number(part.strip())))
    if not 2 <= len(parts) <= _MAX_ITEMS or len(items) != len(parts):
        return None
    return _Several(items, "" if brackets == "{}" else brackets)


def _same_value(one: _Value, other: _Value) -> bool | None:
    if isinstance(one, NumberWithUnit) and isinstance(other, NumberWithUnit):
        if _equal_numbers(one.number, other.number):
            return True
        if (one.unit == "%") == (other.unit == "%"):
            return False
        percent, plain = (one, other) if one.unit == "%" else (other, one)
        return _equal_numbers(percent.number / 100, plain.number)
    if isinstance(one, _Several) and isinstance(other, _Several):
        if len(one.items) != len(other.items) or (one.brackets and other.brackets and one.brackets != other.brackets):
            return False
        if one.brackets or other.brackets:
            return all(_same_value(a, b) for a, b in zip(one.items, other.items, strict=True))
        left = list(other.items)
        for item in one.items:
            if (found := next((i for i, candidate in enumerate(left) if _same_value(item, candidate)), None)) is None:
                return False
            del left[found]
        return True
    if isinstance(one, _TextValue) and isinstance(other, _TextValue):
        # Other texts than choices are known to differ only where one says yes and one says no.
        if one.choice != other.choice:
            return None
        if one.choice or one.text == other.text:
            return one.text == other.text
        sides = [[text in truth for truth in _TRUTHS] for text in (one.text, other.text)]
        return sides[0] == sides[1] if all(map(any, sides)) else None
    return False if {type(one), type(other)} == {NumberWithUnit, _Several} else None


def _equal_numbers(one: Number, other: Number) -> bool:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    return abs(float(one) - float(other)) <= _RELATIVE * max(abs(float(one)), abs(float(other)))


def split_number(text: str) -> NumberWithUnit | None:
    """The number at the beginning of a cleaned text, and the rest of it; None where there is none."""
    if len(text) > _MAX_VALUE_LETTERS:
        return None
    reader = _NumberReader(text)
    try:
        if match := re.match(rf"(-?)\s*{_MIXED.pattern}", text):  # such as 1 1/2
            reader.at = match.end()
            number: Number = int(match[2]) + Fraction(int(match[3]), int(match[4]))
            number = -number if match[1] else number
        else:
            number = reader.sum()
        if isinstance(number, float) and not math.isfinite(number):
            return None
    except (ArithmeticError, ValueError):
        return None
    return NumberWithUnit(number, text[reader.at :].strip())


@dataclass(slots=True)
class _NumberReader:
    """Reads by recursive descent: sums of products of powers."""

    text: str
    at: int = 0
    _depth: int = 0

    def sum(self) -> Number:
        value = self._product()
        while sign := self._one_of("+-"):
            term = self._product()
            value = value + term if sign == "+" else value - term
        return value

    def _product(self) -> Number:
        value = self._signed_number()
        while True:
            if sign := self._one_of("*/"):
                factor = self._signed_number()
                value = value * factor if sign == "*" else value / factor
            elif re.match(r"\s*(?:\(|\\sqrt|\\pi|\\frac)", self.text[self.at :]):
                value = value * self._signed_number()
            else:
                return value

    def _signed_number(self) -> Number:
        sign, value = self._one_of("+-"), self._atom()
        if self._one_of("^"):
            exponent = self._group() if self._next() == "{" else self._signed_number()
            if isinstance(value, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
                bits = value.numerator.bit_length() + value.denominator.bit_length()
                if bits * abs(exponent.numerator) > _MAX_BITS:
                    raise ValueError
                value = value**exponent.numerator
            else:
                value = _require_real(float(value) ** float(exponent))
        return -value if sign == "-" else value

    def _atom(self) -> Number:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError
        try:
            if self._next() in ("(", "{"):
                return self._group()
            for command, read in (("\\frac", self._fraction), ("\\sqrt", self._root), ("\\pi", lambda: math.pi)):
                if self.text.startswith(command, self.at):
                    self.at += len(command)
                    return read()
            return self._number()
        finally:
            self._depth -= 1

    def _number(self) -> Number:
        if not (match := _NUMBER.match(self.text, self.at)):
            raise ValueError
        self.at = match.end()
        value = Fraction(match[0].replace(",", ""))
        if exponent := _SCIENTIFIC.match(self.text, self.at):
            self.at = exponent.end()
            return value * Fraction(10) ** int(exponent[1])
        whole = "." not in match[0] and self.text.startswith("\\frac", self.at)
        if whole:  # 1\frac{1}{2} is a mixed number
            self.at += len("\\frac")
            return value + self._fraction()
        return value

    def _fraction(self) -> Number:
        above, below = self._argument(), self._argument()
        return above / below

    def _root(self) -> Number:
        degree = 2
        if index := re.match(r"\s*\[(\d)\]", self.text[self.at :]):
            degree = int(index[1])
            self.at += index.end()
        value = self._argument()
        if isinstance(value, Fraction) and value > 0 and degree:  # exact where the root is a fraction
            above, below = (round(part ** (1 / degree)) for part in (value.numerator, value.denominator))
            if (root := Fraction(above, below)) ** degree == value:
                return root
        return _require_real(float(value) ** (1 / degree))

    def _argument(self) -> Number:
        if self._next() == "{":
            return self._group()
        if match := re.match(r"\s*(\d)", self.text[self.at :]):
            self.at += match.end()
            return Fraction(int(match[1]))
        return self._atom()

    def _group(self) -> Number:
        close = ")" if self._one_of("({") == "(" else "}"
        value = self.sum()
        if self._one_of(close) is None:
            raise ValueError
        return value

    def _next(self) -> str:
        while self.text.startswith(" ", self.at):
            self.at += 1
        return self.text[self.at : self.at + 1]

    def _one_of(self, signs: str) -> str | None:
        """The next sign if it is one of these, and then it is read."""
        begin = self.at
        if (sign := self._next()) and sign in signs:
            self.at += 1
            return sign
        self.at = begin
        return None


def _require_real(value: float | complex) -> float:
    if isinstance(value, complex):
        raise ValueError
    return value
