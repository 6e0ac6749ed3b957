"""Tests that a balance keeps shares and caps, and chooses by ids and seed alone."""

import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.curate.balance import RULE, Balance
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.shards.clip_id import Clip


class Camera:
    def columns(self):
        return ("camera",)

    def labels(self):
        return {"camera": ("pan", "static", "zoom")}


def record(index, camera, *, rule=None, size=64):
    clip = Clip(f"{index:064d}", 0, 24, 0, 24, Fraction(1, 12))
    scores = {} if camera is None else {"camera": camera}
    return ClipRecord(clip, f"{index % 3}.mp4", (Path("x"),), 12.0, size, size, 2_000_000, scores=scores, rule=rule)


def films(**numbers):
    groups = [group for group, number in numbers.items() for _ in range(number)]
    return [record(index, None if group == "none" else group) for index, group in enumerate(groups)]


def kept(records):
    counts = dict.fromkeys(("pan", "static", "zoom", None), 0)
    for each in records:
        counts[each.scores.get("camera")] += each.decision == "kept"
    return counts


def test_what_is_too_much_goes_under_the_rule_balance():
    records = films(pan=10, static=80, zoom=10)
    found = Balance(by="camera", shares={"static": 0.2}).apply(records)
    assert kept(records) == {"pan": 10, "static": 5, "zoom": 10, None: 0}
    assert {each.rule for each in records if each.decision == "dropped"} == {RULE}
    assert found.plan["held_back_by"] == "*"
    assert found.plan["groups"]["static"] == {
        "clips": 80, "kept": 5, "counted": 5, "share": 0.2, "wanted_share": 0.2,
    }  # fmt: skip


def test_clips_of_a_group_that_is_too_small_may_count_more_than_once():
    records = films(pan=5, static=60)
    found = Balance(by="camera", shares={"pan": 0.25}, repeat=3).apply(records)
    assert kept(records) == {"pan": 5, "static": 45, "zoom": 0, None: 0}
    assert [found.weights[each.clip.id] for each in records[:5]] == [3] * 5


def test_repeats_stop_where_the_largest_group_counts_once():
    records = films(pan=5, static=6)
    found = Balance(by="camera", shares={"pan": 0.5, "static": 0.5}, repeat=10).apply(records)
    assert sorted(found.weights.values()) == [1] * 10 + [2]


def test_caps_hold_each_group_and_a_star_stands_for_every_other():
    records = films(pan=10, static=80, zoom=7, none=6)
    Balance(by="camera", caps={"static": 20, "*": 5}).apply(records)
    assert kept(records) == {"pan": 5, "static": 20, "zoom": 5, None: 5}


def test_only_what_the_rules_keep_is_counted():
    records = [record(0, "pan", rule="blurred"), *films(pan=3)[1:]]
    Balance(by="camera", caps={"pan": 1}).apply(records)
    assert records[0].rule == "blurred" and kept(records)["pan"] == 1


def test_a_bucket_or_a_source_makes_groups_too():
    buckets = Buckets(buckets={"big": Bucket(64, 64, 9, 8), "small": Bucket(32, 32, 9, 8)})
    records = [record(i, None, size=64 if i < 6 else 33) for i in range(9)] + [record(9, None, size=8)]
    found = Balance(by="bucket", caps={"big": 2}, buckets=buckets).apply(records)
    assert {name: group["kept"] for name, group in found.plan["groups"].items()} == {"big": 2, "small": 3, "none": 1}
    by_file = films(pan=9)
    Balance(by="source", caps={"*": 2}).apply(by_file)
    assert [sum(r.source == f"{n}.mp4" for r in by_file if r.decision == "kept") for n in range(3)] == [2, 2, 2]


GROUPS = st.lists(st.sampled_from(["pan", "static", "zoom", None]), max_size=60)


@settings(max_examples=100)
@given(GROUPS, st.integers(1, 4), st.sampled_from([{"pan": 0.5}, {"pan": 0.2, "zoom": 0.3}, {"static": 0.0}]))
def test_shares_come_out_to_a_clip_a_group_and_order_does_not_matter(groups, repeat, shares):
    records = [record(index, group) for index, group in enumerate(groups)]
    balance = Balance(by="camera", shares=shares, repeat=repeat)
    found = balance.apply(records)
    mixed = random.Random(1).sample([record(index, group) for index, group in enumerate(groups)], len(groups))
    assert balance.apply(mixed).weights == balance.apply(mixed).weights == found.weights
    assert max(found.weights.values(), default=0) <= repeat
    counted = sum(found.weights.values())
    if set(groups) == {"pan", "static", "zoom", None}:
        for group, share in shares.items():
            assert abs(found.plan["groups"][group]["counted"] - share * counted) <= 1 + share * len(shares)
    assert sum(group["clips"] for group in found.plan["groups"].values()) == len(groups)


@settings(max_examples=50)
@given(GROUPS, st.integers(0, 20), st.integers(0, 20))
def test_a_lower_cap_keeps_a_part_of_what_a_higher_one_keeps(groups, one, other):
    chosen = []
    for cap in sorted((one, other)):
        records = [record(index, group) for index, group in enumerate(groups)]
        Balance(by="camera", caps={"*": cap}).apply(records)
        chosen.append({each.clip.id for each in records if each.decision == "kept"})
    assert chosen[0] <= chosen[1]


def test_another_seed_keeps_other_clips():
    first, second = films(pan=50), films(pan=50)
    Balance(by="camera", caps={"pan": 10}).apply(first)
    Balance(by="camera", caps={"pan": 10}, seed=1).apply(second)
    assert [r.decision for r in first] != [r.decision for r in second]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": "camera"}, "shares or caps"),
        ({"by": "camera", "shares": {"pan": 0.7, "zoom": 0.4}}, "sum 1.1"),
        ({"by": "camera", "shares": {"*": 0.7}}, "remove \\*"),
        ({"by": "camera", "caps": {"pan": -1}}, "at least 0"),
        ({"by": "bucket", "caps": {"pan": 1}}, "buckets are needed"),
    ],
)
def test_a_balance_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Balance(**arguments)


def test_groups_that_nothing_gives_are_refused():
    columns = {"camera": ("pan", "static", "zoom"), "motion": None, "place": ()}
    with pytest.raises(ValueError, match=r"'scene': nothing gives such labels; there are .*camera, place"):
        Balance(by="scene", caps={"*": 1}).check(columns)
    with pytest.raises(ValueError, match="'motion' groups clips by words, but that column holds numbers"):
        Balance(by="motion", caps={"*": 1}).check(columns, is_all=False)
    with pytest.raises(ValueError, match="names pam; there are pan, static, zoom"):
        Balance(by="camera", caps={"pam": 1}).check(columns)
    Balance(by="scene", caps={"*": 1}).check(columns, is_all=False)  # a table may still give it
    Balance(by="place", caps={"kitchen": 1}).check(columns)  # whose words nobody knows before it is read
