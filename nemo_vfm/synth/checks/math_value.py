"""Reads the value of a short mathematical text: numbers, fractions, roots, sums and products, in LaTeX or not."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

Number = Fraction | float
_MOST_LETTERS, _MOST_BITS, _MOST_DEPTH = 300, 4096, 30
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
class Measured:
    """A number with what stood behind it.

    Args:
        number: exact where it is a fraction, else within floating point.
        unit: such as "cm" or "%"; empty where there is none.
    """

    number: Number
    unit: str


class _NotReadError(ValueError):
    pass


def cleaned(text: str) -> str:
    """Without delimiters of LaTeX, spaces of its own, and signs that are written in several ways."""
    for pattern, new in _REWRITTEN:
        text = pattern.sub(new, text)
    return " ".join(text.split())


def measured(text: str) -> Measured | None:
    """The number at the beginning of a cleaned text, and the rest of it; None where there is none."""
    if len(text) > _MOST_LETTERS:
        return None
    reader = _Reader(text)
    try:
        number = reader.mixed() or reader.sum()
        if isinstance(number, float) and not math.isfinite(number):
            return None
    except (_NotReadError, ArithmeticError, ValueError):
        return None
    return Measured(number, text[reader.at :].strip())


class _Reader:
    """Reads by recursive descent: sums of products of powers."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self._depth = text, 0, 0

    def mixed(self) -> Number | None:
        """Such as 1 1/2."""
        if match := re.match(rf"(-?)\s*{_MIXED.pattern}", self.text):
            self.at = match.end()
            value = int(match[2]) + Fraction(int(match[3]), int(match[4]))
            return -value if match[1] else value
        return None

    def sum(self) -> Number:
        value = self._product()
        while sign := self._one_of("+-"):
            term = self._product()
            value = _both(value, term, (lambda a, b: a + b) if sign == "+" else (lambda a, b: a - b))
        return value

    def _product(self) -> Number:
        value = self._signed()
        while True:
            if sign := self._one_of("*/"):
                factor = self._signed()
                value = _both(value, factor, (lambda a, b: a * b) if sign == "*" else (lambda a, b: a / b))
            elif re.match(r"\s*(?:\(|\\sqrt|\\pi|\\frac)", self.text[self.at :]):
                value = _both(value, self._signed(), lambda a, b: a * b)
            else:
                return value

    def _signed(self) -> Number:
        sign = self._one_of("+-")
        value = self._power()
        return -value if sign == "-" else value

    def _power(self) -> Number:
        base = self._atom()
        if not self._one_of("^"):
            return base
        exponent = self._group() if self._next() == "{" else self._signed()
        if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
            bits = base.numerator.bit_length() + base.denominator.bit_length()
            if bits * abs(exponent.numerator) > _MOST_BITS:
                raise _NotReadError
            return base**exponent.numerator
        return _real(float(base) ** float(exponent))

    def _atom(self) -> Number:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise _NotReadError
        try:
            return self._one_atom()
        finally:
            self._depth -= 1

    def _one_atom(self) -> Number:
        if self._next() in ("(", "{"):
            return self._group()
        for command, read in (("\\frac", self._fraction), ("\\sqrt", self._root), ("\\pi", lambda: math.pi)):
            if self.text.startswith(command, self.at):
                self.at += len(command)
                return read()
        return self._number()

    def _number(self) -> Number:
        if not (match := _NUMBER.match(self.text, self.at)):
            raise _NotReadError
        self.at = match.end()
        value = Fraction(match[0].replace(",", ""))
        if exponent := _SCIENTIFIC.match(self.text, self.at):
            self.at = exponent.end()
            return value * Fraction(10) ** int(exponent[1])
        whole = "." not in match[0] and self.text.startswith("\\frac", self.at)
        if whole:  # 1\frac{1}{2} is a mixed number
            self.at += len("\\frac")
            return _both(value, self._fraction(), lambda a, b: a + b)
        return value

    def _fraction(self) -> Number:
        above, below = self._argument(), self._argument()
        return _both(above, below, lambda a, b: a / b)

    def _root(self) -> Number:
        degree = 2
        if index := re.match(r"\s*\[(\d)\]", self.text[self.at :]):
            degree = int(index[1])
            self.at += index.end()
        value = self._argument()
        return _exact_root(value, degree) or _real(float(value) ** (1 / degree))

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
            raise _NotReadError
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


def _both(first: Number, second: Number, operation: Callable[[Number, Number], Number]) -> Number:
    if isinstance(first, Fraction) and isinstance(second, Fraction):
        return operation(first, second)
    return operation(float(first), float(second))


def _exact_root(value: Number, degree: int) -> Fraction | None:
    """Where it is a fraction; degree 2 or more."""
    if not isinstance(value, Fraction) or value <= 0 or degree < 1:
        return None
    parts = [round(part ** (1 / degree)) for part in (value.numerator, value.denominator)]
    root = Fraction(parts[0], parts[1])
    return root if root**degree == value else None


def _real(value: float | complex) -> float:
    if isinstance(value, complex):
        raise _NotReadError
    return value
