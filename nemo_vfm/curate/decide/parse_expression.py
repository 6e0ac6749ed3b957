"""Parses the text of an expression, or shows with a caret where it stops making sense.

truth  = and {"or" and}          and = not {"and" not}          not = "not" not | compared
    compared = sum {op sum} | column ["not"] "in" (word, ...) | column "is" ["not"] "missing" | "(" truth ")"
    sum    = term {("+" | "-") term}      term = sign {("*" | "/") sign}      sign = "-" sign | atom
    atom   = number | "word" | column | pct(percent) | pct(column, percent) | min(...) | max(...) | abs(.) | "(" sum ")"

Text, numbers and nesting are limited, and nothing here is ever run as Python.
"""

import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal, cast, get_args

from nemo_vfm.curate.decide.score_table import (
    BoolExpr,
    Column,
    Comparator,
    CompareExpr,
    Function,
    FunctionName,
    Missing,
    Not,
    Number,
    Numeric,
    OneOf,
    Percentile,
    Truth,
    Word,
)

MAX_LENGTH, MAX_TOKENS, MAX_DEPTH = 2000, 400, 32
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>(?:\d{1,30}(?:_\d{1,30}){0,9}\.?\d{0,30}|\.\d{1,30})(?:[eE][+-]?\d{1,3})?(?![\w.]))
    |(?P<word>"[^"'\\\x00-\x1f]{0,64}"|'[^"'\\\x00-\x1f]{0,64}')
    |(?P<name>[A-Za-z_][A-Za-z0-9_]{0,99}(?:\.[A-Za-z0-9_]{1,99}){0,5})
    |(?P<sign><=|>=|==|!=|[<>+\-*/(),]))""",
    re.VERBOSE,
)
_KEYWORDS = frozenset({"and", "or", "not", "in", "is"})
_FUNCTIONS = ("pct", "min", "max", "abs")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class _OpenPercentile:
    """`pct(15)`, of a column that stands on the other side of the comparison."""

    at: int
    percent: float


_Operand = Numeric | Word | _OpenPercentile
_TRUTHS = (CompareExpr, OneOf, Missing, Not, BoolExpr)


def complaint(text: str, at: int, message: str) -> ValueError:
    """A mistake, with the line and a caret below it."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    start = max(0, at - 70)
    return ValueError(f"{message}\n    {shown[start : start + 110]}\n    {' ' * (at - start)}^")


@lru_cache(maxsize=256)
def parse(text: str) -> Truth:
    """The expression."""
    if len(text) > MAX_LENGTH:
        raise ValueError(
            f"an expression has at most {MAX_LENGTH} characters, this one has {len(text)}; split it into two rules"
        )
    return _Parser(text, _tokens(text)).parse()


_HINTS = {
    "=": "; equality is written ==", "&|!": "; write and, or, not", "\"'": "; quote a word with matching quotes",
}  # fmt: skip


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            hint = next((hint for signs, hint in _HINTS.items() if text[at] in signs), "")
            raise complaint(text, at, f"{text[at]!r} is not allowed here{hint}")
        found.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
        at = match.end()
    if len(found) > MAX_TOKENS:
        raise ValueError(f"an expression has at most {MAX_TOKENS} words and signs, this one {len(found)}")
    return [*found, _Token("end", "", end)]


@dataclass(slots=True)
class _Parser:
    """Goes through the tokens once, from left to right."""

    _text: str
    _tokens: list[_Token]
    _place: int = 0
    _depth: int = 0

    def parse(self) -> Truth:
        part = self._truth(self._disjunction())
        if self._next.kind != "end":
            raise self._error(self._next.at, f"{self._next.text!r} is unexpected here; join comparisons with and, or")
        return part

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _error(self, at: int, message: str) -> ValueError:
        return complaint(self._text, at, message)

    def _take(self, *texts: str) -> _Token | None:
        """The next token if it is one of these signs or keywords."""
        token = self._next
        if token.kind in ("sign", "name") and token.text in texts:
            self._place += 1
            return token
        return None

    def _expect(self, text: str) -> _Token:
        token = self._take(text)
        if token is None:
            found = "the end" if self._next.kind == "end" else repr(self._next.text)
            raise self._error(self._next.at, f"expected {text!r} here, got {found}")
        return token

    def _deeper(self, at: int) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(at, f"an expression is nested at most {MAX_DEPTH} deep")

    def _truth(self, part: Truth | _Operand) -> Truth:
        if not isinstance(part, _TRUTHS):
            raise self._error(part.at, "this is neither true nor false; compare it with something")
        return part

    def _operand(self, part: Truth | _Operand) -> _Operand:
        if isinstance(part, _TRUTHS):
            raise self._error(part.at, "this is true or false, but a number was expected")
        return part

    def _number(self, part: Truth | _Operand) -> Numeric:
        part = self._operand(part)
        if isinstance(part, Word):
            raise self._error(part.at, "a word can only be compared with a column, by ==, != or in (...)")
        if isinstance(part, _OpenPercentile):
            raise self._error(part.at, f"of which column? Write pct(COLUMN, {part.percent:g})")
        return part

    def _disjunction(self, word: Literal["and", "or"] = "or") -> Truth | _Operand:
        """Operands joined by `or`; those are joined by `and`, which binds tighter."""
        deeper = self._not if word == "and" else partial(self._disjunction, "and")
        first = deeper()
        parts = [first]
        while self._take(word):
            parts.append(deeper())
        if len(parts) == 1:
            return first
        return BoolExpr(first.at, word, tuple(self._truth(part) for part in parts))

    def _not(self) -> Truth | _Operand:
        token = self._take("not")
        if token is None:
            return self._comparison()
        self._deeper(token.at)
        part = Not(token.at, self._truth(self._not()))
        self._depth -= 1
        return part

    def _comparison(self) -> Truth | _Operand:
        first = self._sum()
        if not isinstance(first, _TRUTHS):
            if self._take("is"):
                negated = self._take("not")
                if self._take("missing", "null") is None:
                    why = "expected `missing` here: SCORE is missing, or SCORE is not missing"
                    raise self._error(self._next.at, why)
                missing = Missing(first.at, self._column(first, "only a column can be missing"))
                return Not(first.at, missing) if negated else missing
            negated = self._take("not")
            if negated or self._next.text == "in":
                self._expect("in")
                column = self._column(first, "only a column of labels can be in (...)")
                self._expect("(")
                words = [self._word()]
                while self._take(","):
                    words.append(self._word())
                self._expect(")")
                found = OneOf(first.at, column, tuple(words))
                return Not(first.at, found) if negated else found
        links: list[Truth] = []
        while sign := self._take(*get_args(Comparator)):
            second = self._sum()
            links.append(self._link(sign, self._operand(first), self._operand(second)))
            first = second
        return first if not links else links[0] if len(links) == 1 else BoolExpr(links[0].at, "and", tuple(links))

    def _word(self) -> Word:
        token = self._next
        if token.kind != "word":
            raise self._error(token.at, "expected a word in quotes here")
        self._place += 1
        return Word(token.at, token.text[1:-1])

    def _column(self, part: _Operand, why: str) -> Column:
        if not isinstance(part, Column):
            raise self._error(part.at, why)
        return part

    def _link(self, sign: _Token, left: _Operand, right: _Operand) -> Truth:
        """One comparison, of a label with a word or of two numbers."""
        for word, other in ((left, right), (right, left)):
            if isinstance(word, Word):
                if sign.text not in ("==", "!="):
                    raise self._error(sign.at, f"words have no order, so {sign.text} does not apply; use == or !=")
                label = self._column(other, "a word can only be compared with a column")
                found = OneOf(left.at, label, (word,))
                return Not(left.at, found) if sign.text == "!=" else found
        numbers = []
        for part, other in ((left, right), (right, left)):
            if isinstance(part, _OpenPercentile) and isinstance(other, Column):
                part = Percentile(part.at, other.name, part.percent)
            numbers.append(self._number(part))
        return CompareExpr(left.at, cast(Comparator, sign.text), *numbers)

    def _sum(self, signs: str = "+-") -> Truth | _Operand:
        """A sum of products, which bind tighter."""
        deeper = self._sign if signs == "*/" else partial(self._sum, "*/")
        left = deeper()
        while sign := self._take(*signs):
            right = deeper()
            left = Function(left.at, cast(FunctionName, sign.text), (self._number(left), self._number(right)))
        return left

    def _sign(self) -> Truth | _Operand:
        if sign := self._take("-"):
            self._deeper(sign.at)
            negated = self._number(self._sign())
            self._depth -= 1
            if isinstance(negated, Number):
                return Number(sign.at, -negated.value)
            return Function(sign.at, "-", (Number(sign.at, 0.0), negated))
        token = self._next
        if token.kind == "number":
            self._place += 1
            value = float(token.text)
            if value in (float("inf"), float("-inf")):
                raise self._error(token.at, "this number is too large")
            return Number(token.at, value)
        if token.kind == "word":
            return self._word()
        if token.kind == "name" and token.text not in _KEYWORDS:
            self._place += 1
            called = self._next.text == "(" and self._next.kind == "sign"
            return self._call(token) if called else Column(token.at, token.text)
        if self._take("(") is None:
            found = "the end" if token.kind == "end" else repr(token.text)
            raise self._error(token.at, f"expected a number, a column or ( here, got {found}")
        self._deeper(token.at)
        part = self._disjunction()
        self._expect(")")
        self._depth -= 1
        return part

    def _call(self, name: _Token) -> _Operand:
        if name.text not in _FUNCTIONS:
            raise self._error(name.at, f"there is no function {name.text}; known are {', '.join(_FUNCTIONS)}")
        self._deeper(self._expect("(").at)
        arguments = [self._operand(self._sum())]
        while self._take(","):
            arguments.append(self._operand(self._sum()))
        self._expect(")")
        self._depth -= 1
        if name.text == "pct":
            percent = arguments[-1]
            if len(arguments) > 2 or not isinstance(percent, Number) or not 0 <= percent.value <= 100:
                raise self._error(name.at, "pct takes a number from 0 to 100, or a column and such a number")
            if len(arguments) == 1:
                return _OpenPercentile(name.at, percent.value)
            column = self._column(arguments[0], "only a column has percentiles")
            return Percentile(name.at, column.name, percent.value)
        if (len(arguments) == 1) != (name.text == "abs"):
            raise self._error(name.at, f"{name.text} takes {'one number' if name.text == 'abs' else 'two or more'}")
        return Function(name.at, cast(FunctionName, name.text), tuple(self._number(each) for each in arguments))
