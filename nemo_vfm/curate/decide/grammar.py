"""Defines the parts of a parsed expression, as plain values that compute nothing.

Each part knows the place in the text where it begins, since an error is shown there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Comparator = Literal["<", "<=", ">", ">=", "==", "!="]
Operator = Literal["+", "-", "*", "/"]
FunctionName = Literal["min", "max", "abs"]


@dataclass(frozen=True, slots=True)
class Number:
    """A number."""

    at: int
    value: float


@dataclass(frozen=True, slots=True)
class Word:
    """A text in quotes, for comparing with a column of labels."""

    at: int
    text: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table."""

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Percentile:
    """The value of a column below which `percent` of the clips lie that did not fail and have that score."""

    at: int
    column: str
    percent: float


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Two numbers joined."""

    at: int
    op: Operator
    left: "Numeric"
    right: "Numeric"


@dataclass(frozen=True, slots=True)
class Function:
    """A function of numbers."""

    at: int
    name: FunctionName
    arguments: tuple["Numeric", ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """Two numbers compared."""

    at: int
    op: Comparator
    left: "Numeric"
    right: "Numeric"


@dataclass(frozen=True, slots=True)
class OneOf:
    """Whether a label is one of some words."""

    at: int
    column: Column
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """Whether a clip has no such score."""

    at: int
    column: Column


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite."""

    at: int
    part: "Truth"


@dataclass(frozen=True, slots=True)
class Every:
    """All parts joined by `and`."""

    at: int
    parts: tuple["Truth", ...]


@dataclass(frozen=True, slots=True)
class Some:
    """All parts joined by `or`."""

    at: int
    parts: tuple["Truth", ...]


Numeric = Number | Column | Percentile | Arithmetic | Function
Truth = Compared | OneOf | Missing | Not | Every | Some


@dataclass(frozen=True, slots=True)
class Use:
    """A column as an expression uses it.

    Args:
        at: where.
        name: the column.
        kind: as what; None where either will do (`is missing`).
        words: what it is compared with, where it is a label.
    """

    at: int
    name: str
    kind: Literal["number", "label"] | None
    words: tuple[Word, ...] = ()


def uses(part: Truth | Numeric) -> Iterator[Use]:
    """Every use of a column, from left to right."""
    match part:
        case Column(at, name) | Percentile(at, name, _):
            yield Use(at, name, "number")
        case OneOf(_, Column(at, name), words):
            yield Use(at, name, "label", words)
        case Missing(_, Column(at, name)):
            yield Use(at, name, None)
        case Arithmetic(_, _, left, right) | Compared(_, _, left, right):
            yield from uses(left)
            yield from uses(right)
        case Function(_, _, arguments):
            for argument in arguments:
                yield from uses(argument)
        case Not(_, inner):
            yield from uses(inner)
        case Every(_, parts) | Some(_, parts):
            for each in parts:
                yield from uses(each)
