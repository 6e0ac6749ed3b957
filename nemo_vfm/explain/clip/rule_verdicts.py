"""Says for each rule whether a clip passes it, and by how much."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from nemo_vfm.curate.decide.rule import Rule, reads_captions
from nemo_vfm.curate.decide.score_table import Labels
from nemo_vfm.explain.clip.curation_folder import Curation

Says = Literal["passes", "drops", "not asked", "unknown"]


@dataclass(frozen=True, slots=True)
class Margin:
    """A clip's value compared with one threshold."""

    score: str
    value: float | None  #: the clip's; None where it has none
    op: Literal["<", ">"]  #: "<" where the rule drops what is below the threshold, ">" where what is above
    threshold: float  #: as a number, percentiles computed
    drops: bool  #: whether this threshold drops the clip
    by: float | None  #: how far the value is from the threshold; None without a value
    #: a threshold of four digits that would let the clip through; None where it passes or has no value
    spares_at: float | None


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """The verdict of one rule on a clip."""

    rule: str
    text: str  #: as it is written
    form: Literal["keep", "drop"]  #: whether that says what is kept or what is dropped
    says: Says  #: passes, drops, not asked, or unknown where the rule cannot be read
    decided: bool = False  #: whether this rule dropped the clip
    #: the clip's, of every column that the rule reads
    values: Mapping[str, float | str | None] = field(default_factory=dict)
    #: of thresholds that drop clips by themselves; other shapes of expressions have none
    margins: tuple[Margin, ...] = ()
    why: str = ""  #: a few words where the numbers do not say it


def verdicts(curation: Curation, place: int) -> list[RuleVerdict]:
    """The verdict of every rule on the clip, in the order of the recipe."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    compared = {"similarity"}  # columns that compare clips with each other: those that something is remembered for
    with suppress(pa.ArrowException, OSError, KeyError, ValueError):
        column = pq.read_table(curation.folder / "vectors.parquet", columns=["column"])["column"]
        compared = set(column.unique().to_pylist())
    found = []
    for name, rule_values in curation.read("rules.json").items():
        try:
            if "keep" in rule_values or "drop" in rule_values:
                rule = Rule(keep=rule_values.get("keep"), drop=rule_values.get("drop"))
            else:
                threshold, is_below = float(rule_values["threshold"]), rule_values["op"] == "<"
                above, below = (None, threshold) if is_below else (threshold, None)
                rule = Rule(score=rule_values["score"], below=below, above=above)
            drops, limits = bool(rule.drops(curation.table)[place]), rule.limits(curation.table)
        except (ValueError, TypeError, KeyError, AttributeError):
            why = "rules.json cannot be read here"
            found.append(RuleVerdict(name, str(rule_values), "drop", "unknown", why=why))
            continue
        decided = curation.text("rule", place) == name
        columns = dict.fromkeys(use.name for use in rule.uses())
        says, why = _says(curation, place, drops, decided, bool(compared & columns.keys()), reads_captions(rule))
        margins = []
        for limit in limits:
            value, is_over = curation.number(limit.score, place), bool(limit.drops(curation.table)[place])
            spares = spares_at(value, limit.op, inclusive=limit.inclusive) if is_over and value is not None else None
            by = None if value is None else abs(value - limit.threshold)
            margins.append(Margin(limit.score, value, limit.op, limit.threshold, is_over, by, spares))
        values = {column: value_of(curation, column, place) for column in columns}
        form: Literal["keep", "drop"] = "keep" if rule.keep is not None else "drop"
        found.append(RuleVerdict(name, rule.text, form, says, decided, values, tuple(margins), why))
    return found


def value_of(curation: Curation, column: str, place: int) -> float | str | None:
    """A score of the clip, number or word."""
    found = curation.table.columns.get(column)
    if isinstance(found, Labels):
        code = int(found.codes[place])
        return found.words[code] if code >= 0 else None
    return None if found is None else curation.number(column, place)


def spares_at(value: float, op: str, *, inclusive: bool) -> float:
    """The nearest threshold of at most four digits at which a clip of that value is not dropped."""
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 3) if value else 1e-4
    down = op == "<"
    whole = math.floor(value / step) if down else math.ceil(value / step)
    found = float(f"{whole * step:.10g}")
    stands = found <= value if down else found >= value
    if not stands or (inclusive and found == value):
        found = float(f"{(whole - 1 if down else whole + 1) * step:.10g}")
    return found


def _says(
    curation: Curation, place: int, drops: bool, decided: bool, compares: bool, captions: bool
) -> tuple[Says, str]:
    if curation.text("message", place) is not None:
        return "not asked", "it failed before the rules were applied"
    was_captioned = value_of(curation, "caption_by", place) is not None
    if captions and not was_captioned:
        return "not asked", "the clip was dropped before it was captioned"
    if not compares or decided:
        return ("drops" if drops or decided else "passes"), ""
    if curation.text("rule", place) is not None and not was_captioned:
        return "not asked", "it compares only clips that the other rules keep"
    if not drops:
        return "passes", ""
    if curation.texts("clip_id")[place] in curation.others["duplicate_of"]:
        return "passes", "it is the one kept among its duplicates"
    return "passes", "its duplicates were dropped by other rules"
