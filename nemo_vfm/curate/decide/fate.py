"""Decides each clip's fate from its scores and the rules; it reads numbers only, so deciding again is quick."""

from collections.abc import Iterable, Mapping, Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.decide.check_rules import comparisons, reads_captions
from nemo_vfm.curate.decide.rule import Rule, first_broken
from nemo_vfm.curate.decide.score_table import Table, table_of
from nemo_vfm.curate.record.stage import ClipRecord, Compares, Stage


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
    captions are left out, see `decide_by_captions`.
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


def decide_by_captions(records: Sequence[ClipRecord], rules: Mapping[str, Rule]) -> None:
    """Set `rule` of kept clips that break a rule which reads captions; what went for being like them stays away."""
    chosen = {name: rule for name, rule in rules.items() if reads_captions(rule)}
    names = [*chosen, None]  # the last place stands for -1
    for record, place in zip(records, first_broken(table_of(records), chosen).tolist(), strict=True):
        if record.decision == "kept":
            record.rule = names[place]


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
