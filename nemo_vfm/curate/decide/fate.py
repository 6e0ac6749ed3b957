# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Scored clips and rules in; each clip's fate out. It reads numbers only, so it can be done again in no time."""

from collections.abc import Mapping, Sequence

from nemo_vfm.curate.decide.rule import Rule, first_broken
from nemo_vfm.curate.stage import FACTS, ClipRecord, Comparison, Score, Stage


def check_rules(stages: Mapping[str, Stage], rules: Mapping[str, Rule]) -> None:
    """Refuse rules on scores that nobody gives.

    Raises:
        ValueError: such a rule, a score given twice, or a comparison's rule that drops what is *un*like.
    """
    given: dict[str, str] = dict.fromkeys(FACTS, "the video itself")
    for name, stage in stages.items():
        if not isinstance(stage, Score | Comparison):
            raise ValueError(f"stage {name!r} is a {type(stage).__name__}, which neither measures nor compares clips")
        for column in stage.columns():
            if column in given:
                raise ValueError(f"the score {column!r} is given by {given[column]} and by the stage {name!r}")
            given[column] = f"the stage {name!r}"
    for name, rule in rules.items():
        if rule.score not in given:
            raise ValueError(
                f"rule {name!r} reads the score {rule.score!r}, which no stage gives; there are {sorted(given)}. "
                f"Remove the rule too (~rules.{name}) if you removed its stage"
            )
    for column, (name, _) in _comparisons(stages).items():
        if any(rule.score == column and rule.op == "<" for rule in rules.values()):
            raise ValueError(f"a rule on {column!r} of the stage {name!r} must say above: it drops what is alike")


def _comparisons(stages: Mapping[str, Stage]) -> dict[str, tuple[str, Comparison]]:
    """The comparing stages by their column."""
    return {s.columns()[0]: (name, s) for name, s in stages.items() if isinstance(s, Comparison)}


def add_likeness(records: Sequence[ClipRecord], stages: Mapping[str, Stage]) -> None:
    """Give every clip that did not fail its score against all the others."""
    for column, (name, stage) in _comparisons(stages).items():
        good = [record for record in records if name in record.vectors]
        for record, likeness in zip(good, stage.likeness([r.vectors[name] for r in good]), strict=True):
            record.scores[column] = likeness


def decide(records: Sequence[ClipRecord], stages: Mapping[str, Stage], rules: Mapping[str, Rule]) -> None:
    """Set `rule` and `duplicate_of` of every clip that has not failed.

    The first rule broken, in the recipe's order, is the one that is named. Comparisons come last and only among
    what the other rules keep: else a clip could go for being like one that went for being blurred.
    """
    compared = _comparisons(stages)
    single = {name: rule for name, rule in rules.items() if rule.score not in compared}
    for record in records:
        record.duplicate_of = None
        record.rule = None if record.message is not None else first_broken(record, single)
    for name, rule in rules.items():
        if rule.score in compared:
            _drop_duplicates(records, name, rule, *compared[rule.score])


def _drop_duplicates(records: Sequence[ClipRecord], name: str, rule: Rule, stage_name: str, stage: Comparison) -> None:
    kept = [record for record in records if record.decision == "kept"]
    vectors = [record.vectors[stage_name] for record in kept]
    for duplicate, keeper in stage.duplicates(kept, vectors, rule.threshold).items():
        kept[duplicate].rule = name
        kept[duplicate].duplicate_of = kept[keeper].clip.id
    # With several comparing rules a keeper may go later: follow it to the one that stayed.
    standing = {record.clip.id: record.duplicate_of for record in records}
    for record in records:
        while record.duplicate_of is not None and (further := standing[record.duplicate_of]) is not None:
            record.duplicate_of = further
