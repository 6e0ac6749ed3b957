# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A score's name and a threshold in; which clips go, and for which rule, out. Rules read numbers, never video."""

from collections.abc import Mapping
from dataclasses import dataclass

from nemo_vfm.core.types import Json
from nemo_vfm.curate.stage import ClipRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Drops each clip whose score is below, or above, a threshold. The threshold itself is kept.

    Args:
        score: column of scores.parquet.
        below: drop what is lower than this.
        above: drop what is higher than this.
    """

    score: str
    below: float | None = None
    above: float | None = None

    def __post_init__(self) -> None:
        if (self.below is None) == (self.above is None):
            raise ValueError(
                f"a rule on {self.score!r} needs either below or above, got below={self.below}, above={self.above}"
            )

    @property
    def threshold(self) -> float:
        """The number the score is compared with."""
        return self.below if self.below is not None else self.above  # type: ignore[return-value]

    @property
    def op(self) -> str:
        """ "<" where it drops what is below, ">" where it drops what is above."""
        return "<" if self.below is not None else ">"

    def drops(self, score: float) -> bool:
        """Whether a clip with this score goes."""
        return score < self.threshold if self.op == "<" else score > self.threshold

    def to_json(self) -> Json:
        """As rules.json has it."""
        return {"score": self.score, "op": self.op, "threshold": self.threshold}


def first_broken(record: ClipRecord, rules: Mapping[str, Rule]) -> str | None:
    """The first rule, in the recipe's order, that drops the clip; None where none does."""
    return next((name for name, rule in rules.items() if rule.drops(float(record.value(rule.score)))), None)
