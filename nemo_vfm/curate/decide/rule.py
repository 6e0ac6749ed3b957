"""Drops clips by a threshold or an expression; rules read numbers, never video."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.decide.evaluate_expression import truth
from nemo_vfm.curate.decide.grammar import Column, Compared, Number, Truth, Use, uses
from nemo_vfm.curate.decide.limit import Limit, limits, passes_without
from nemo_vfm.curate.decide.parse_expression import complaint, parse
from nemo_vfm.curate.decide.score_table import Flags, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Drops clips by their scores: either by one threshold, or by an expression (docs/how-to/video/decisions.md).

    A clip without the score is dropped by `keep` alone, which keeps only clips for which it is certainly true. An image
    has no scores of time and motion, so `keep` drops it only if the expression is certainly false.

    Args:
        score: column of the table, compared with a threshold that is itself kept.
        below: drop clips with a lower score.
        above: drop clips with a higher score.
        keep: an expression; what it is not true of is dropped, such as `motion > 2 and camera != "static"`.
        drop: an expression; what it is true of is dropped.
    """

    score: str | None = None
    below: float | None = None
    above: float | None = None
    keep: str | None = None
    drop: str | None = None

    def __post_init__(self) -> None:
        forms = [form for form in ("score", "keep", "drop") if getattr(self, form) is not None]
        if len(forms) != 1:
            raise ValueError(f"a rule needs exactly one of score, keep and drop, got {' and '.join(forms) or 'none'}")
        thresholds = (self.below is not None) + (self.above is not None)
        if self.score is not None and thresholds != 1:
            raise ValueError(
                f"a rule on {self.score!r} needs either below or above, got below={self.below}, above={self.above}"
            )
        if self.score is None and thresholds:
            raise ValueError(f"below and above belong to score; in {forms[0]!r} write the number into the expression")
        if not self.uses():
            raise ValueError(f"the expression {self.text!r} reads no column, so its result is the same for every clip")

    @property
    def text(self) -> str:
        """The expression as it was written, or what `score` stands for."""
        if self.score is not None:
            return f"{self.score} {'<' if self.below is not None else '>'} {self._threshold():g}"
        return self.keep or self.drop or ""

    def _threshold(self) -> float:
        value = self.below if self.below is not None else self.above
        assert value is not None
        return float(value)

    def expression(self) -> Truth:
        """The rule's condition: with `keep` it selects the clips to keep, otherwise the clips to drop."""
        if self.score is not None:
            op = "<" if self.below is not None else ">"
            return Compared(0, "<" if op == "<" else ">", Column(0, self.score), Number(0, self._threshold()))
        return parse(self.keep if self.keep is not None else self.drop or "")

    def uses(self) -> list[Use]:
        """Every column it reads."""
        return list(uses(self.expression()))

    def complaint(self, at: int, message: str) -> ValueError:
        """A mistake; in an expression, with a caret below it."""
        return ValueError(message) if self.score is not None else complaint(self.text, at, message)

    def drops(self, table: Table) -> Flags:
        """Of every clip whether it goes; what failed is not asked for."""
        verdict = truth(self.expression(), table)
        if self.keep is None:
            return verdict.true
        return np.where(table.images, verdict.false, ~verdict.true)

    def limits(self, table: Table) -> list[Limit]:
        """The thresholds each of which drops clips by itself, percentiles as the numbers that they are here."""
        return limits(self.expression(), table, keeps=self.keep is not None)

    def passes_without(self, limit: Limit, table: Table) -> Flags:
        """Of every clip whether it would be kept if this limit let it through."""
        return passes_without(self.expression(), limit, table, keeps=self.keep is not None)

    def to_json(self, table: Table | None = None) -> Json:
        """As rules.json has it: score, op and threshold of the first limit, where there is one, and all of them."""
        if self.score is not None:
            return {"score": self.score, "op": "<" if self.below is not None else ">", "threshold": self._threshold()}
        form = {"keep": self.keep} if self.keep is not None else {"drop": self.drop}
        found = [] if table is None else [limit.to_json() for limit in self.limits(table)]
        return {**form, **(found[0] if found else {}), "limits": found}


def first_broken(table: Table, rules: Mapping[str, Rule]) -> NDArray[np.int32]:
    """Of every clip the place of the first rule that drops it; -1 where none does, or where it failed."""
    found = np.full(len(table), -1, np.int32)
    for place, rule in enumerate(rules.values()):
        found[rule.drops(table) & (found < 0) & table.alive] = place
    return found
