"""Finds the thresholds of an expression that can be moved, and the clips that each alone lets through.

Each part of `keep: a > 1 and b < 2`, or of `drop: a <= 1 or b >= 2`, can drop a clip by itself. Such parts are limits.
In other expressions no number is a limit by itself.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.decide.evaluate_expression import number, truth
from nemo_vfm.curate.decide.grammar import Arithmetic, Column, Compared, Every, Function, Numeric, Some, Truth
from nemo_vfm.curate.decide.score_table import Flags, Table

_MIRROR = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True, slots=True)
class Limit:
    """One threshold.

    Args:
        score: the column.
        op: "<" where it drops what is below the threshold, ">" where it drops what is above.
        threshold: as a number, percentiles computed.
        inclusive: whether the threshold itself is dropped as well.
        drops_missing: whether a clip without the score is dropped.
        at: where in the text the comparison begins.
    """

    score: str
    op: Literal["<", ">"]
    threshold: float
    inclusive: bool
    drops_missing: bool
    at: int

    def to_json(self) -> Json:
        """As rules.json has it."""
        return {"score": self.score, "op": self.op, "threshold": self.threshold, "inclusive": self.inclusive}

    def drops(self, table: Table) -> Flags:
        """Of every clip whether this limit alone drops it."""
        values = table.numbers(self.score)
        below, same = values < self.threshold, values == self.threshold
        dropped = below if self.op == "<" else values > self.threshold
        dropped = dropped | same if self.inclusive else dropped
        return dropped | (np.isnan(values) & ~table.images) if self.drops_missing else dropped


def limits(part: Truth, table: Table, *, keeps: bool) -> list[Limit]:
    """The limits of an expression that says what is kept, or else what is dropped."""
    found = [_limit(each, table, keeps) for each in _parts(part, keeps) if isinstance(each, Compared)]
    return [limit for limit in found if limit is not None]


def passes_without(part: Truth, limit: Limit, table: Table, *, keeps: bool) -> Flags:
    """Of every clip whether the expression would let it through if this limit did."""
    passes = np.ones(len(table), bool)
    for other in (each for each in _parts(part, keeps) if each.at != limit.at):
        verdict = truth(other, table)
        passes &= verdict.true | (table.images & ~verdict.false) if keeps else ~verdict.true
    return passes


def _parts(part: Truth, keeps: bool) -> Iterator[Truth]:
    """What stands alone on the side that drops."""
    if (isinstance(part, Every) and keeps) or (isinstance(part, Some) and not keeps):
        for each in part.parts:
            yield from _parts(each, keeps)
    else:
        yield part


def _limit(part: Compared, table: Table, keeps: bool) -> Limit | None:
    op, left, right = part.op, part.left, part.right
    if not isinstance(left, Column):
        op, left, right = _MIRROR.get(op, op), right, left  # type: ignore[assignment]
    if not isinstance(left, Column) or op not in _MIRROR or not _is_fixed(right):
        return None
    dropped = _OPPOSITE[op] if keeps else op
    threshold = float(number(right, table))
    if not math.isfinite(threshold):
        return None
    side: Literal["<", ">"] = "<" if dropped[0] == "<" else ">"
    return Limit(left.name, side, threshold, dropped.endswith("="), keeps, part.at)


def _is_fixed(part: Numeric) -> bool:
    """Whether it is one number for all clips."""
    return not any(isinstance(each, Column) for each in _walk(part))


def _walk(part: Numeric) -> Iterator[Numeric]:
    yield part
    if isinstance(part, Arithmetic):
        yield from _walk(part.left)
        yield from _walk(part.right)
    elif isinstance(part, Function):
        for each in part.arguments:
            yield from _walk(each)
