"""Decides each clip's fate from its scores and the rules, and counts what other thresholds would change.

It reads numbers only, so deciding again is quick.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.caption.caption_types import CAPTION_COLUMNS
from nemo_vfm.curate.decide.expression import Limit
from nemo_vfm.curate.decide.rule import Rule, comparisons, first_broken, reads_captions
from nemo_vfm.curate.decide.score_table import Flags, Table, table_of
from nemo_vfm.curate.record.stage import ClipRecord, Compares, Stage

SCHEMA = "nemo_vfm.survival/1"
_POINTS = 64
NEAREST_PAIRS = "nearest_pairs.json"
_SHOWN = 12
_COMPARED = 2000  # clips compared once more: those of the highest likeness to any other


def add_likeness(records: Sequence[ClipRecord], stages: Mapping[str, Stage]) -> None:
    """Give every clip that did not fail its score against all the others."""
    for column, (name, stage) in comparisons(stages).items():
        for good in by_kind(record for record in records if name in record.vectors):
            for record, likeness in zip(good, stage.likeness([r.vectors[name] for r in good]), strict=True):
                record.scores[column] = likeness


def decide(records: Sequence[ClipRecord], stages: Mapping[str, Stage], rules: Mapping[str, Rule]) -> None:
    """Set `rule` and `duplicate_of` of every clip that has not failed.

    The first rule broken, in the recipe's order, is the one that is named. Comparisons come last and only among
    what the other rules keep: else a clip could go for being like one that went for being blurred. Rules that read
    captions are left out: they are applied once there are captions.
    """
    table, compared = table_of(records), comparisons(stages)
    rules = {name: rule for name, rule in rules.items() if not reads_captions(rule)}
    single = {name: rule for name, rule in rules.items() if rule.uses()[0].name not in compared}
    names = [*single, None]  # the last place stands for -1
    for record, place in zip(records, first_broken(table, single).tolist(), strict=True):
        record.duplicate_of, record.rule = None, names[place]
    for name, rule in rules.items():
        if name not in single:
            drop_duplicates(records, name, above(rule, table), *compared[rule.uses()[0].name])


def above(rule: Rule, table: Table) -> float:
    """Of a rule on a comparison, the likeness above which clips are dropped; infinity where nothing was compared."""
    found = rule.limits(table)
    return found[0].threshold if found else float("inf")


def drop_duplicates(records: Sequence[ClipRecord], name: str, above: float, stage_name: str, stage: Compares) -> None:
    """Drop all but one of the kept clips that are alike, under the rule's name."""
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
    """Videos' clips, and images, which are compared among themselves: a still must not take the place of a film."""
    listed = list(records)
    return [[record for record in listed if record.is_image is kind] for kind in (False, True)]


def rules_json(rules: Mapping[str, Rule], records: Sequence[ClipRecord]) -> Json:
    """rules.json: each rule as it is written and, percentiles computed, its thresholds."""
    table = table_of(records)
    return {name: rule.to_json(table) for name, rule in rules.items()}


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
    """Of each comparing stage its column, the threshold of the rule on it, if any, and pairs, the most alike first.

    Args:
        records: those that are kept are looked at.
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
