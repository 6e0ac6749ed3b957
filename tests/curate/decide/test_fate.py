"""Tests which clips are dropped, by which rule, and as a copy of which clip."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_vfm.curate.decide.rule import Rule, add_likeness, check_rules, decide
from nemo_vfm.curate.decide.score_table import table_of
from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.curate.score.motion import Motion
from nemo_vfm.curate.score.near_duplicate import NearDuplicate
from nemo_vfm.data.shards.clip_id import Clip
from tests.support.films import pan

STAGES = {"motion": Motion(), "near_duplicate": NearDuplicate()}
RULES = {
    "too_short": Rule(score="duration_s", below=1.0),
    "static": Rule(score="motion", below=2.0),
    "near_duplicate": Rule(score="similarity", above=0.9),
}


def record(index, look, *, motion=5.0, size=64, seconds=2.0, message=None):
    clip = Clip(f"{index:064d}", 0, 24, 0, 24, Fraction(1, 12))
    vector = STAGES["near_duplicate"].remember(ClipFrames.of(pan(look, 16), 12.0))
    return ClipRecord(
        clip, f"{index}.mp4", (Path("x"),), 12.0, size, size, round(seconds * 1e6),
        scores={"motion": motion}, vectors={"near_duplicate": vector}, message=message,
    )  # fmt: skip


def decided(*records):
    add_likeness(records, STAGES)
    decide(records, STAGES, RULES)
    return records


def test_the_first_broken_rule_in_the_order_of_the_recipe_is_named():
    assert decided(record(0, 0, motion=0.0, seconds=0.5))[0].rule == "too_short"


def test_the_threshold_itself_is_kept():
    assert decided(record(0, 0, motion=2.0))[0].decision == "kept"


def test_of_copies_the_largest_stays_and_the_others_refer_to_it():
    small, large, other = decided(record(0, 1, size=32), record(1, 1, size=64), record(2, 7))
    assert (small.rule, small.duplicate_of) == ("near_duplicate", large.clip.id)
    assert large.decision == other.decision == "kept"


def test_a_copy_of_a_clip_that_another_rule_drops_stays():
    small, large = decided(record(0, 1, size=32), record(1, 1, size=64, motion=0.0))
    assert (small.decision, large.rule) == ("kept", "static")


def test_a_copy_of_a_clip_that_failed_stays():
    small, large = decided(record(0, 1, size=32), record(1, 1, size=64, message="broken"))
    assert (small.decision, large.decision) == ("kept", "failed")


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.0, 5.0]), st.integers(32, 34)), max_size=8))
def test_every_reference_points_to_a_kept_clip(cases):
    records = decided(*(record(i, look, motion=motion, size=size) for i, (look, motion, size) in enumerate(cases)))
    kept = {record.clip.id for record in records if record.decision == "kept"}
    assert all(record.duplicate_of in kept for record in records if record.duplicate_of is not None)
    assert all((record.rule == "near_duplicate") == (record.duplicate_of is not None) for record in records)


def test_deciding_again_with_another_threshold_forgets_the_first():
    records = decided(record(0, 0, motion=1.0))
    decide(records, STAGES, RULES | {"static": Rule(score="motion", below=0.5)})
    assert records[0].decision == "kept"


def test_a_rule_on_a_score_that_nobody_gives_is_refused_and_says_how_to_remove_it():
    with pytest.raises(ValueError, match=r"rule 'near_duplicate'.*~rules\.near_duplicate"):
        check_rules({"motion": Motion()}, RULES)


def test_a_score_given_twice_is_refused():
    with pytest.raises(ValueError, match="'motion' is given by the stage 'a' and by the stage 'b'"):
        check_rules({"a": Motion(), "b": Motion()}, {})


def test_a_rule_that_drops_what_is_not_alike_is_refused():
    with pytest.raises(ValueError, match="must have the form above"):
        check_rules(STAGES, {"odd": Rule(score="similarity", below=0.5)})


@pytest.mark.parametrize("limits", [{}, {"below": 1.0, "above": 2.0}])
def test_a_rule_has_one_threshold(limits):
    with pytest.raises(ValueError, match="either below or above"):
        Rule(score="motion", **limits)


@pytest.mark.parametrize("rule", [Rule(drop="similarity > 0.9"), Rule(keep="similarity <= 0.9")])
def test_a_comparisons_rule_may_be_an_expression_of_one_threshold(rule):
    rules = RULES | {"near_duplicate": rule}
    check_rules(STAGES, rules)
    records = [record(0, 1, size=32), record(1, 1, size=64)]
    add_likeness(records, STAGES)
    decide(records, STAGES, rules)
    assert [r.rule for r in records] == ["near_duplicate", None]


@pytest.mark.parametrize(
    "rule",
    [
        Rule(drop="similarity > 0.9 or motion > 1"),
        Rule(keep="motion > 1 and similarity <= 0.9"),
        Rule(keep="similarity > 0.9"),
        Rule(drop="0.9 < similarity"),
    ],
)
def test_a_comparisons_rule_that_says_more_is_refused(rule):
    with pytest.raises(ValueError, match="so that it drops similar clips"):
        check_rules(STAGES, RULES | {"near_duplicate": rule})


def test_an_expression_decides_over_several_scores_and_percentiles_are_of_what_did_not_fail():
    records = [record(i, i, motion=float(i), message="broken" if i == 4 else None) for i in range(5)]
    decide(records, STAGES, {"dull": Rule(keep="motion >= pct(50) and duration_s > 1")})
    assert [r.rule for r in records] == ["dull", "dull", None, None, None]
    assert Rule(keep="motion >= pct(50)").to_json(table_of(records))["threshold"] == 1.5
