"""Evaluates an expression on a table, a column at a time: for which clips it is true, and for which it is false.

Where a score is missing a comparison is neither. `and`, `or` and `not` then return what is certain (Kleene's logic). If
x is missing and y is 2, `x > 1 or y > 1` is true. A value without a finite result, such as 1 / 0, is missing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nemo_vfm.curate.decide.grammar import (
    Arithmetic,
    Column,
    Compared,
    Every,
    Function,
    Missing,
    Not,
    Number,
    Numeric,
    OneOf,
    Percentile,
    Some,
    Truth,
)
from nemo_vfm.curate.decide.score_table import Flags, Labels, Numbers, Table

_COMPARE: dict[str, Callable[[Numbers, Numbers], Flags]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal,
}  # fmt: skip
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_COMPUTE: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of every clip, whether an expression is certainly true, and whether it is certainly false; else it is unknown."""

    true: Flags
    false: Flags


def truth(part: Truth, table: Table) -> Verdict:
    """What an expression says of every clip.

    Raises:
        ValueError: a column of words is used as a number.
    """
    match part:
        case Compared(_, op, left, right):
            return _compared(op, number(left, table), number(right, table), len(table))
        case OneOf(_, column, words):
            return _one_of(table.labels(column.name), frozenset(word.text for word in words))
        case Missing(_, column):
            missing = _missing(column.name, table)
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
    """A number for every clip, or one for all of them; NaN where it is missing."""
    match part:
        case Number(_, value):
            return np.array(value)
        case Column(_, name):
            return table.numbers(name)
        case Percentile(_, name, percent):
            return np.array(table.percentile(name, percent))
        case Arithmetic(_, op, left, right):
            return _finite(op, number(left, table), number(right, table))
        case Function(_, "abs", (argument,)):
            return np.abs(number(argument, table))
        case Function(_, name, arguments):
            first, *others = (number(each, table) for each in arguments)
            for other in others:
                first = _COMPUTE[name](first, other)
            return first


def _finite(op: str, left: Numbers, right: Numbers) -> Numbers:
    with np.errstate(all="ignore"):
        result = _COMPUTE[op](left, right)
    return np.where(np.isfinite(result), result, np.nan)


def _compared(op: str, left: Numbers, right: Numbers, length: int) -> Verdict:
    if op in _OPPOSITE:  # with NaN both are false
        true, false = _COMPARE[op](left, right), _COMPARE[_OPPOSITE[op]](left, right)
    else:
        equal = np.equal(left, right)
        other = ~equal & ~np.isnan(left) & ~np.isnan(right)
        true, false = (equal, other) if op == "==" else (other, equal)
    return Verdict(np.broadcast_to(true, length), np.broadcast_to(false, length))


def _one_of(labels: Labels, words: frozenset[str]) -> Verdict:
    # The last place stands for -1, a clip without the label.
    true = np.array([*(word in words for word in labels.words), False])[labels.codes]
    return Verdict(true, ~true & (labels.codes >= 0))


def _missing(name: str, table: Table) -> Flags:
    column = table.columns.get(name)
    if isinstance(column, Labels):
        return column.codes < 0
    return np.isnan(table.numbers(name))
