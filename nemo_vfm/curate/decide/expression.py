"""Defines the parts of a parsed expression, evaluates them on a table, and finds the thresholds that can be moved.

Each part knows where in the text it begins, so that errors point there.

Where a score is missing, a comparison is neither true nor false. `and`, `or` and `not` then return what is certain
(Kleene's logic). If x is missing and y is 2, `x > 1 or y > 1` is true. A value without a finite result, such as 1 / 0,
is missing.

Each part of `keep: a > 1 and b < 2`, or of `drop: a <= 1 or b >= 2`, can drop a clip by itself. Such parts are limits.
In other expressions no number is a limit by itself.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.decide.score_table import Flags, Labels, Numbers, Table

Comparator = Literal["<", "<=", ">", ">=", "==", "!="]
Operator = Literal["+", "-", "*", "/"]
FunctionName = Literal["min", "max", "abs"]
_COMPARE: dict[str, Callable[[Numbers, Numbers], Flags]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal,
}  # fmt: skip
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_COMPUTE: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "min": np.minimum, "max": np.maximum,
}  # fmt: skip
_MIRROR = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


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
    """A column as an expression uses it."""

    at: int
    name: str
    kind: Literal["number", "label"] | None  #: its use; None where either will do (`is missing`)
    words: tuple[Word, ...] = ()  #: the words it is compared with, if it is a label


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """For every clip, whether an expression is certainly true or certainly false; if neither, it is unknown."""

    true: Flags
    false: Flags


def truth(part: Truth, table: Table) -> Verdict:
    """Evaluate an expression for every clip."""
    match part:
        case Compared(_, op, left, right):
            one, other = number(left, table), number(right, table)
            if op in _OPPOSITE:  # with NaN both are false
                true, false = _COMPARE[op](one, other), _COMPARE[_OPPOSITE[op]](one, other)
            else:
                true = np.equal(one, other)
                false = ~true & ~np.isnan(one) & ~np.isnan(other)
                true, false = (true, false) if op == "==" else (false, true)
            return Verdict(np.broadcast_to(true, len(table)), np.broadcast_to(false, len(table)))
        case OneOf(_, column, words):
            labels, wanted = table.labels(column.name), {word.text for word in words}
            # The last entry is for -1, a clip without the label.
            true = np.array([*(word in wanted for word in labels.words), False])[labels.codes]
            return Verdict(true, ~true & (labels.codes >= 0))
        case Missing(_, column):
            values = table.columns.get(column.name)
            missing = values.codes < 0 if isinstance(values, Labels) else np.isnan(table.numbers(column.name))
            return Verdict(missing, ~missing)
        case Not(_, inner):
            verdict = truth(inner, table)
            return Verdict(verdict.false, verdict.true)
        case Every(_, parts):
            verdicts = [truth(each, table) for each in parts]
            return Verdict(
                np.logical_and.reduce([v.true for v in verdicts]), np.logical_or.reduce([v.false for v in verdicts])
            )
        case Some(_, parts):
            verdicts = [truth(each, table) for each in parts]
            return Verdict(
                np.logical_or.reduce([v.true for v in verdicts]), np.logical_and.reduce([v.false for v in verdicts])
            )


def number(part: Numeric, table: Table) -> Numbers:
    """A number for every clip, or one number for all; NaN where it is missing."""
    match part:
        case Number(_, value):
            return np.array(value)
        case Column(_, name):
            return table.numbers(name)
        case Percentile(_, name, percent):
            return np.array(table.percentile(name, percent))
        case Arithmetic(_, op, left, right):
            with np.errstate(all="ignore"):
                result = _COMPUTE[op](number(left, table), number(right, table))
            return np.where(np.isfinite(result), result, np.nan)
        case Function(_, "abs", (argument,)):
            return np.abs(number(argument, table))
        case Function(_, name, arguments):
            first, *others = (number(each, table) for each in arguments)
            for other in others:
                first = _COMPUTE[name](first, other)
            return first


@dataclass(frozen=True, slots=True)
class Limit:
    """One threshold."""

    score: str
    op: Literal["<", ">"]  #: "<" where it drops what is below the threshold, ">" where it drops what is above
    threshold: float  #: as a number, percentiles computed
    inclusive: bool  #: whether the threshold itself is dropped as well
    drops_missing: bool  #: whether a clip without the score is dropped
    at: int  #: where in the text the comparison begins

    def to_json(self) -> Json:
        """As rules.json has it."""
        return {"score": self.score, "op": self.op, "threshold": self.threshold, "inclusive": self.inclusive}

    def drops(self, table: Table) -> Flags:
        """For every clip, whether this limit alone drops it."""
        values = table.numbers(self.score)
        below, same = values < self.threshold, values == self.threshold
        dropped = below if self.op == "<" else values > self.threshold
        dropped = dropped | same if self.inclusive else dropped
        return dropped | (np.isnan(values) & ~table.images) if self.drops_missing else dropped


def limits(part: Truth, table: Table, *, keeps: bool) -> list[Limit]:
    """The limits of an expression that says what is kept, or else what is dropped."""
    found = []
    for each in _parts(part, keeps):
        if not isinstance(each, Compared):
            continue
        op, left, right = each.op, each.left, each.right
        if not isinstance(left, Column):
            op, left, right = _MIRROR.get(op, op), right, left  # type: ignore[assignment]
        if not isinstance(left, Column) or op not in _MIRROR or _reads_column(right):
            continue
        dropped, threshold = _OPPOSITE[op] if keeps else op, float(number(right, table))
        if math.isfinite(threshold):
            side: Literal["<", ">"] = "<" if dropped[0] == "<" else ">"
            found.append(Limit(left.name, side, threshold, dropped.endswith("="), keeps, each.at))
    return found


def passes_without(part: Truth, limit: Limit, table: Table, *, keeps: bool) -> Flags:
    """For every clip, whether the expression would keep it if this limit did."""
    passes = np.ones(len(table), bool)
    for other in (each for each in _parts(part, keeps) if each.at != limit.at):
        verdict = truth(other, table)
        passes &= verdict.true | (table.images & ~verdict.false) if keeps else ~verdict.true
    return passes


def _parts(part: Truth, keeps: bool) -> Iterator[Truth]:
    """The parts that can each drop a clip alone."""
    if (isinstance(part, Every) and keeps) or (isinstance(part, Some) and not keeps):
        for each in part.parts:
            yield from _parts(each, keeps)
    else:
        yield part


def _reads_column(part: Numeric) -> bool:
    """Whether its value differs between clips; a percentile is one number for all."""
    match part:
        case Arithmetic(_, _, left, right):
            return _reads_column(left) or _reads_column(right)
        case Function(_, _, arguments):
            return any(map(_reads_column, arguments))
    return isinstance(part, Column)
