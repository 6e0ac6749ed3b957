"""Lists the kept clips that are most alike: what a lower threshold for duplicates would drop (nearest_pairs.json)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.decide.check_rules import comparisons
from nemo_vfm.curate.decide.fate import above, by_kind
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.curate.decide.score_table import Table
from nemo_vfm.curate.record.stage import ClipRecord, Compares, Stage

NEAREST_PAIRS = "nearest_pairs.json"
_SHOWN = 12
_COMPARED = 2000  # clips compared once more: those of the highest likeness to any other


@dataclass(frozen=True, slots=True)
class _Pair:
    """A clip that would stay and one that would go, and how alike they are."""

    stays: str
    goes: str
    likeness: float


def nearest_pairs(
    records: Sequence[ClipRecord], stages: Mapping[str, Stage], rules: Mapping[str, Rule], table: Table
) -> dict[str, Json]:
    """Of each comparing stage its column, the threshold of the rule on it, if any, and pairs, the most alike first.

    Args:
        records: those that are kept are looked at.
        stages: by name, as in the records' `vectors`.
        rules: those that were decided by.
        table: all clips, for percentiles in rules.
    """
    found: dict[str, Json] = {}
    for column, (name, stage) in comparisons(stages).items():
        kept = [record for record in records if record.decision == "kept" and name in record.vectors]
        pairs = [pair for group in by_kind(kept) for pair in _pairs(group, column, name, stage)]
        best = sorted(pairs, key=lambda pair: (-pair.likeness, pair.stays, pair.goes))[:_SHOWN]
        limit = next((above(rule, table) for rule in rules.values() if rule.uses()[0].name == column), None)
        found[name] = {
            "column": column, "above": limit if limit is not None and math.isfinite(limit) else None,
            "pairs": [{"stays": pair.stays, "goes": pair.goes, "likeness": pair.likeness} for pair in best],
        }  # fmt: skip
    return found


def _pairs(group: Sequence[ClipRecord], column: str, name: str, stage: Compares) -> list[_Pair]:
    """What would go, and for which clip, as the threshold falls from one likeness to the next."""
    clips = sorted(group, key=lambda record: -float(record.scores[column]))[:_COMPARED]
    vectors = [record.vectors[name] for record in clips]
    stays_for: dict[int, int] = {}
    for likeness in sorted({one for one in stage.likeness(vectors) if one > 0}, reverse=True)[: 2 * _SHOWN]:
        # Just below, also for a stage that computes in float32. Lower at once, one clip would stand for all.
        for goes, stays in stage.duplicates(clips, vectors, likeness - 1e-6).items():
            stays_for.setdefault(goes, stays)
        if len(stays_for) >= _SHOWN:
            break
    return [
        _Pair(clips[stays].clip.id, clips[goes].clip.id, stage.likeness([vectors[stays], vectors[goes]])[0])
        for goes, stays in stays_for.items()
    ]
