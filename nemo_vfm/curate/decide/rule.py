"""Drops clips by rules, a threshold or an expression each, and counts what other thresholds would change.

It reads numbers only, so deciding again is quick.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Literal

import numpy as np

from nemo_vfm.core.types.component import PartRefused
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.caption.caption_types import CAPTION_COLUMNS
from nemo_vfm.curate.decide.parse_expression import complaint, parse
from nemo_vfm.curate.decide.score_table import (
    OPPOSITE,
    BoolExpr,
    Column,
    ColumnUse,
    CompareExpr,
    Flags,
    Function,
    Number,
    Numeric,
    Table,
    Truth,
    number,
    table_of,
    truth,
    uses,
)
from nemo_vfm.curate.record.ledger import FACTS, ClipRecord
from nemo_vfm.curate.record.stage import Compares, FileScore, HasLabels, LearnedStage, Score, Stage

SCHEMA = "nemo_vfm.survival/1"
_MIRROR = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_POINTS = 64
NEAREST_PAIRS = "nearest_pairs.json"
_SHOWN = 12
_COMPARED = 2000  # clips compared once more: those of the highest likeness to any other


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
            return CompareExpr(0, "<" if op == "<" else ">", Column(0, self.score), Number(0, self._threshold()))
        return parse(self.keep if self.keep is not None else self.drop or "")

    def uses(self) -> list[ColumnUse]:
        """Every column it reads."""
        return list(uses(self.expression()))

    def complaint(self, at: int, message: str) -> ValueError:
        """An error; in an expression, with a caret below the place."""
        return ValueError(message) if self.score is not None else complaint(self.text, at, message)

    def drops(self, table: Table) -> Flags:
        """For every clip, whether the rule drops it; failed clips do not count."""
        verdict = truth(self.expression(), table)
        if self.keep is None:
            return verdict.true
        return np.where(table.images, verdict.false, ~verdict.true)

    def limits(self, table: Table) -> list[Limit]:
        """The thresholds that each drop clips alone, with percentiles computed for this table."""
        found, keeps = [], self.keep is not None
        for part in self._parts(self.expression()):
            if not isinstance(part, CompareExpr):
                continue
            op, left, right = part.op, part.left, part.right
            if not isinstance(left, Column):
                op, left, right = _MIRROR.get(op, op), right, left  # type: ignore[assignment]
            if not isinstance(left, Column) or op not in _MIRROR or _reads_column(right):
                continue
            dropped, threshold = OPPOSITE[op] if keeps else op, float(number(right, table))
            if math.isfinite(threshold):
                side: Literal["<", ">"] = "<" if dropped[0] == "<" else ">"
                found.append(Limit(left.name, side, threshold, dropped.endswith("="), keeps, part.at))
        return found

    def passes_without(self, limit: Limit, table: Table) -> Flags:
        """For every clip, whether it would be kept if this limit kept it."""
        passes = np.ones(len(table), bool)
        for other in (part for part in self._parts(self.expression()) if part.at != limit.at):
            verdict = truth(other, table)
            passes &= ~verdict.true if self.keep is None else verdict.true | (table.images & ~verdict.false)
        return passes

    def _parts(self, part: Truth) -> Iterator[Truth]:
        """The parts that can each drop a clip alone: `keep: a > 1 and b < 2` has two, as has `drop: a <= 1 or b >= 2`.

        In other expressions no number is a limit by itself.
        """
        if isinstance(part, BoolExpr) and part.word == ("or" if self.keep is None else "and"):
            for each in part.parts:
                yield from self._parts(each)
        else:
            yield part

    def to_json(self, table: Table | None = None) -> Json:
        """For rules.json: score, op and threshold of the first limit, if there is one, and all limits."""
        if self.score is not None:
            return {"score": self.score, "op": "<" if self.below is not None else ">", "threshold": self._threshold()}
        form = {"keep": self.keep} if self.keep is not None else {"drop": self.drop}
        found = [] if table is None else [limit.to_json() for limit in self.limits(table)]
        return {**form, **(found[0] if found else {}), "limits": found}


def _reads_column(part: Numeric) -> bool:
    """Whether its value differs between clips; a percentile is one number for all."""
    return isinstance(part, Column) or (isinstance(part, Function) and any(map(_reads_column, part.arguments)))


def first_broken(table: Table, rules: Mapping[str, Rule]) -> list[str | None]:
    """For every clip, the first rule that drops it; None if none does, or it failed."""
    found = np.full(len(table), -1, np.int32)
    for place, rule in enumerate(rules.values()):
        found[rule.drops(table) & (found < 0) & table.alive] = place
    names = [*rules, None]  # the last entry is for -1
    return [names[place] for place in found.tolist()]


Known = Mapping[str, Collection[str] | None]  # column -> the words that may stand in it; None where it holds numbers


def check_rules(
    stages: Mapping[str, Stage], rules: Mapping[str, Rule], of_source: Known | None = MappingProxyType({})
) -> None:
    """Refuse rules on scores that no stage gives.

    Args:
        of_source: the columns of the source; None if they are not known yet, so that any name may be one.

    Raises:
        ValueError: such a rule, a score given twice, a word that no stage gives, words used as numbers, or a
            comparison's rule that is more than one threshold above which clips are dropped.
    """
    given: dict[str, str] = dict.fromkeys(FACTS, "the video itself") | dict.fromkeys(CAPTION_COLUMNS, "the caption")
    given |= dict.fromkeys(of_source or (), "the source")
    for name, stage in stages.items():
        if not isinstance(stage, Score | FileScore | Compares | LearnedStage):
            raise ValueError(f"stage {name!r} is a {type(stage).__name__}, which neither scores nor compares clips")
        for column in stage.columns():
            if column in given:
                raise ValueError(f"the score {column!r} is given by {given[column]} and by the stage {name!r}")
            given[column] = f"the stage {name!r}"
    known = dict.fromkeys(given) | label_columns(stages) | dict(CAPTION_COLUMNS) | dict(of_source or {})
    check_columns(known, rules, is_all=of_source is not None)
    for column, (stage_name, _) in comparisons(stages).items():
        for name, rule in rules.items():
            part, sign = rule.expression(), ">" if rule.keep is None else "<="
            left = part.left if isinstance(part, CompareExpr) and part.op == sign else None
            says_above = isinstance(left, Column) and left.name == column
            if any(use.name == column for use in rule.uses()) and not says_above:
                raise PartRefused(
                    f"a rule on {column!r} of the stage {stage_name!r} must have the form above: NUMBER or drop: "
                    f"{column} > NUMBER, so that it drops similar clips; rule {name!r} says {rule.text}", "rules", name,
                )  # fmt: skip


def label_columns(stages: Mapping[str, Stage]) -> dict[str, Sequence[str]]:
    """The columns that hold words, with the words they may hold."""
    labelling = [stage for stage in stages.values() if isinstance(stage, HasLabels)]
    return {column: tuple(words) for stage in labelling for column, words in stage.labels().items()}


def comparisons(stages: Mapping[str, Stage]) -> dict[str, tuple[str, Compares]]:
    """The comparing stages by their column."""
    return {stage.columns()[0]: (name, stage) for name, stage in stages.items() if isinstance(stage, Compares)}


def reads_captions(rule: Rule) -> bool:
    """Whether a rule can only be applied once clips have their captions."""
    return any(use.name in CAPTION_COLUMNS for use in rule.uses())


def check_columns(known: Known, rules: Mapping[str, Rule], *, is_all: bool = True) -> None:
    """Refuse rules that read missing columns, or words as numbers; unless `is_all`, there may be more columns."""
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


def add_likeness(records: Sequence[ClipRecord], stages: Mapping[str, Stage]) -> None:
    """Give every clip that did not fail its similarity to the others."""
    for column, (name, stage) in comparisons(stages).items():
        for good in by_kind(record for record in records if name in record.vectors):
            for record, likeness in zip(good, stage.likeness([r.vectors[name] for r in good]), strict=True):
                record.scores[column] = likeness


def decide(records: Sequence[ClipRecord], stages: Mapping[str, Stage], rules: Mapping[str, Rule]) -> None:
    """Set `rule` and `duplicate_of` of every clip that has not failed.

    The first rule broken, in the recipe's order, is the one that is recorded. Comparisons come last, among the clips
    that the other rules keep: else a clip could be dropped as a duplicate of a blurred one that is dropped, too.
    Rules that read captions are left out: they are applied once there are captions.
    """
    table, compared = table_of(records), comparisons(stages)
    rules = {name: rule for name, rule in rules.items() if not reads_captions(rule)}
    single = {name: rule for name, rule in rules.items() if rule.uses()[0].name not in compared}
    for record, broken in zip(records, first_broken(table, single), strict=True):
        record.duplicate_of, record.rule = None, broken
    for name, rule in rules.items():
        if name not in single:
            drop_duplicates(records, name, above(rule, table), *compared[rule.uses()[0].name])


def above(rule: Rule, table: Table) -> float:
    """The similarity above which a rule on a comparison drops clips; infinity if nothing was compared."""
    found = rule.limits(table)
    return found[0].threshold if found else float("inf")


def drop_duplicates(records: Sequence[ClipRecord], name: str, above: float, stage_name: str, stage: Compares) -> None:
    """Of kept clips that are alike, drop all but one under the rule's name."""
    standing = (record for record in records if record.decision == "kept" and stage_name in record.vectors)
    for kept in by_kind(standing):
        vectors = [record.vectors[stage_name] for record in kept]
        for duplicate, keeper in stage.duplicates(kept, vectors, above).items():
            kept[duplicate].rule = name
            kept[duplicate].duplicate_of = kept[keeper].clip.id
    # With several comparing rules a keeper may go later: follow it to the one that stayed.
    gone_for = {record.clip.id: record.duplicate_of for record in records}
    for record in records:
        while record.duplicate_of is not None and (further := gone_for[record.duplicate_of]) is not None:
            record.duplicate_of = further


def by_kind(records: Iterable[ClipRecord]) -> list[list[ClipRecord]]:
    """Clips of videos, and images: compared separately, so that no still replaces a video."""
    listed = list(records)
    return [[record for record in listed if record.is_image is kind] for kind in (False, True)]


def survival(table: Table, rules: Mapping[str, Rule], *, compared: Collection[str] = ()) -> Json:
    """What survival.json holds; see docs/how-to/video/decisions.md.

    Args:
        compared: columns of comparisons, whose rules are left out.
    """
    chosen = {
        name: rule
        for name, rule in rules.items()
        if not {use.name for use in rule.uses()} & {*compared, *CAPTION_COLUMNS}
    }
    drops = {name: rule.drops(table) & table.alive for name, rule in chosen.items()}
    broken = np.sum([*drops.values(), np.zeros(len(table), bool)], axis=0)  # how many rules each clip breaks
    decided = np.zeros(len(table), bool)
    found = {}
    for name, rule in chosen.items():
        alone = drops[name] & (broken == 1)
        others = table.alive & (broken - drops[name] == 0)
        found[name] = {
            "rule": rule.text,
            "drops": _amount(table, drops[name]),
            "drops_first": _amount(table, drops[name] & ~decided),
            "drops_alone": _amount(table, alone),
            "curves": [_curve(table, rule, limit, others) for limit in rule.limits(table)],
        }
        decided |= drops[name]
    survive = _amount(table, table.alive & (broken == 0))
    return {"schema": SCHEMA, "in": _amount(table, table.alive), "survive": survive, "rules": found}


def _amount(table: Table, chosen: Flags) -> Json:
    return {"clips": int(chosen.sum()), "seconds": int(table.microseconds[chosen].sum()) / 1e6}


def _curve(table: Table, rule: Rule, limit: Limit, others: Flags) -> Json:
    """What survives all rules with this threshold at each of some places; the other thresholds stay."""
    free = others & rule.passes_without(limit, table)
    column = table.numbers(limit.score)
    known = free & ~np.isnan(column)
    always = free & np.isnan(column) & (table.images if limit.drops_missing else True)
    values = column[known]
    # Evenly many clips lie between two places; one more is where the threshold stands.
    spread = np.quantile(values, np.linspace(0, 1, _POINTS)) if len(values) else values
    places = np.unique(np.append(spread, limit.threshold))
    order = np.argsort(values)
    total_us = np.concatenate([np.zeros(1, np.int64), np.cumsum(table.microseconds[known][order])])
    # Below `cut` lie the values that are lower than the place, and those equal to it where they go the same way.
    side = "right" if limit.inclusive == (limit.op == "<") else "left"
    cut = np.searchsorted(values[order], places, side=side)  # type: ignore[call-overload]
    clips, lasts_us = cut, total_us[cut]
    if limit.op == "<":
        clips, lasts_us = len(values) - cut, total_us[-1] - total_us[cut]
    base = _amount(table, always)
    return {
        **limit.to_json(),
        "thresholds": places.tolist(),
        "clips": (clips + base["clips"]).tolist(),
        "seconds": (lasts_us / 1e6 + base["seconds"]).tolist(),
    }


def nearest_pairs(
    records: Sequence[ClipRecord], stages: Mapping[str, Stage], rules: Mapping[str, Rule], table: Table
) -> dict[str, Json]:
    """For each comparing stage its column, the threshold of its rule, if any, and pairs, the most similar first.

    Args:
        records: only kept clips are compared.
        stages: by name, as in the records' `vectors`.
        table: all clips, for percentiles in rules.
    """
    found: dict[str, Json] = {}
    for column, (name, stage) in comparisons(stages).items():
        kept = [record for record in records if record.decision == "kept" and name in record.vectors]
        pairs = []  # -likeness, and the ids of a clip that would stay and of one that would go
        for group in by_kind(kept):
            clips = sorted(group, key=lambda record: -float(record.scores[column]))[:_COMPARED]
            vectors = [record.vectors[name] for record in clips]
            # What would go, and for which clip, as the threshold falls from one likeness to the next.
            stays_for: dict[int, int] = {}
            for likeness in sorted({one for one in stage.likeness(vectors) if one > 0}, reverse=True)[: 2 * _SHOWN]:
                # Just below, also for a stage that computes in float32. Lower at once, one clip would stand for all.
                for goes, stays in stage.duplicates(clips, vectors, likeness - 1e-6).items():
                    stays_for.setdefault(goes, stays)
                if len(stays_for) >= _SHOWN:
                    break
            for goes, stays in stays_for.items():
                alike = stage.likeness([vectors[stays], vectors[goes]])[0]
                pairs.append((-alike, clips[stays].clip.id, clips[goes].clip.id))
        limit = next((above(rule, table) for rule in rules.values() if rule.uses()[0].name == column), None)
        found[name] = {
            "column": column, "above": limit if limit is not None and math.isfinite(limit) else None,
            "pairs": [{"stays": s, "goes": g, "likeness": -less} for less, s, g in sorted(pairs)[:_SHOWN]],
        }  # fmt: skip
    return found
