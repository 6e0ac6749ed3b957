"""Drops clips by a threshold or an expression, and refuses rules on columns that no stage of the recipe gives."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.component import PartRefused
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.caption.caption_types import CAPTION_COLUMNS
from nemo_vfm.curate.decide.expression import (
    Column,
    Compared,
    Limit,
    Number,
    Truth,
    Use,
    limits,
    passes_without,
    truth,
    uses,
)
from nemo_vfm.curate.decide.parse_expression import complaint, parse
from nemo_vfm.curate.decide.score_table import Flags, Table
from nemo_vfm.curate.record.stage import FACTS, Compares, FileScore, Labelling, Learned, Score, Stage


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


Known = Mapping[str, Collection[str] | None]  # column -> the words that may stand in it; None where it holds numbers


def check_rules(
    stages: Mapping[str, Stage], rules: Mapping[str, Rule], of_source: Known | None = MappingProxyType({})
) -> None:
    """Refuse rules on scores that nobody gives.

    Args:
        of_source: the columns of the source; None where nobody knows them yet, so that any other may be one.

    Raises:
        ValueError: such a rule, a score given twice, a word that no stage gives, words used as numbers, or a
            comparison's rule that is more than one threshold above which clips are dropped.
    """
    given: dict[str, str] = dict.fromkeys(FACTS, "the video itself") | dict.fromkeys(CAPTION_COLUMNS, "the caption")
    given |= dict.fromkeys(of_source or (), "the source")
    for name, stage in stages.items():
        if not isinstance(stage, Score | FileScore | Compares | Learned):
            raise ValueError(f"stage {name!r} is a {type(stage).__name__}, which neither scores nor compares clips")
        for column in stage.columns():
            if column in given:
                raise ValueError(f"the score {column!r} is given by {given[column]} and by the stage {name!r}")
            given[column] = f"the stage {name!r}"
    known = dict.fromkeys(given) | label_columns(stages) | dict(CAPTION_COLUMNS) | dict(of_source or {})
    check_columns(known, rules, is_all=of_source is not None)
    for column, (stage_name, _) in comparisons(stages).items():
        for name, rule in rules.items():
            if any(use.name == column for use in rule.uses()) and not _says_above(rule, column):
                raise PartRefused(
                    f"a rule on {column!r} of the stage {stage_name!r} must have the form above: NUMBER or drop: "
                    f"{column} > NUMBER, so that it drops similar clips; rule {name!r} says {rule.text}", "rules", name,
                )  # fmt: skip


def label_columns(stages: Mapping[str, Stage]) -> dict[str, Sequence[str]]:
    """The columns that hold words, and which words those may be."""
    labelling = [stage for stage in stages.values() if isinstance(stage, Labelling)]
    return {column: tuple(words) for stage in labelling for column, words in stage.labels().items()}


def comparisons(stages: Mapping[str, Stage]) -> dict[str, tuple[str, Compares]]:
    """The comparing stages by their column."""
    return {stage.columns()[0]: (name, stage) for name, stage in stages.items() if isinstance(stage, Compares)}


def reads_captions(rule: Rule) -> bool:
    """Whether a rule can only be applied once clips have their captions."""
    return any(use.name in CAPTION_COLUMNS for use in rule.uses())


def check_columns(known: Known, rules: Mapping[str, Rule], *, is_all: bool = True) -> None:
    """Refuse rules that read columns that are not there, or words as numbers; unless `is_all` there may be others."""
    for name, rule in rules.items():
        try:
            for use in rule.uses():
                if use.name in known:
                    words = known[use.name]
                    if words is not None and use.kind == "number":
                        some = ", ".join(list(words)[:4])
                        raise rule.complaint(
                            use.at,
                            f"rule {name!r} uses {use.name!r} as a number, but it holds words"
                            + (f" such as {some}" if some else ""),
                        )
                    if words is None and use.kind == "label":
                        raise rule.complaint(
                            use.at, f"rule {name!r} compares {use.name!r} with a word, but it holds numbers"
                        )
                    for word in use.words:
                        if words and word.text not in words:
                            near = get_close_matches(word.text, words, n=1, cutoff=0.6)
                            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(words)}"
                            raise rule.complaint(word.at, f"rule {name!r}: {use.name!r} is never {word.text!r}; {hint}")
                elif is_all:
                    near = get_close_matches(use.name, known, n=1, cutoff=0.6)
                    hint, others = f"did you mean {near[0]!r}? Remove" if near else "remove", ""
                    if not near:  # the list comes last: with all stages it is so long that what follows is cut off
                        others = f". There are {', '.join(sorted(known))}"
                    raise rule.complaint(
                        use.at,
                        f"rule {name!r} reads the score {use.name!r}, which no stage gives; {hint} the rule too "
                        f"(~rules.{name}) if you removed its stage{others}",
                    )
        except ValueError as error:
            raise PartRefused(str(error), "rules", name) from None


def _says_above(rule: Rule, column: str) -> bool:
    part = rule.expression()
    if rule.score is not None:
        return rule.above is not None
    sign = ">" if rule.drop is not None else "<="
    return isinstance(part, Compared) and part.op == sign and isinstance(part.left, Column) and part.left.name == column
