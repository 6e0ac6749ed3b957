"""Tests that the pairs that are listed are those that a lower threshold would drop, the first one first."""

import math
from fractions import Fraction
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from nemo_vfm.curate.decide.rule import Rule, add_likeness, decide, nearest_pairs
from nemo_vfm.curate.decide.score_table import table_of
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.curate.score.near_duplicate import largest_kept
from nemo_vfm.data.shards.clip_id import Clip


class Near:
    """Clips are alike whose numbers are near."""

    def columns(self):
        return ("nearness",)

    def remember(self, footage):
        raise NotImplementedError

    def _pairs(self, vectors):
        return [(a, b, 1 - abs(float(vectors[a]) - float(vectors[b]))) for a, b in combinations(range(len(vectors)), 2)]

    def likeness(self, vectors):
        best = [0.0] * len(vectors)
        for a, b, alike in self._pairs(vectors):
            best[a], best[b] = max(best[a], alike), max(best[b], alike)
        return best

    def duplicates(self, clips, vectors, above):
        return largest_kept(clips, [(a, b) for a, b, alike in self._pairs(vectors) if alike > above], "sharpness")


def record(index, place, is_image):
    clip = Clip(f"{index:064d}", 0, 24, 0, 24, Fraction(1, 12))
    vectors, width = {"near": repr(place)}, 64 + (index * 7) % 11
    return ClipRecord(clip, f"{index}.mp4", (), 12.0, width, 64, 2_000_000, vectors=vectors, is_image=is_image)


@given(st.lists(st.tuples(st.integers(0, 900), st.booleans()), max_size=40), st.integers(300, 1024))
def test_a_threshold_below_the_first_pair_drops_the_second_of_it_and_nothing_above_does(places, above):
    above /= 1024
    records = [record(number, place / 1024, is_image) for number, (place, is_image) in enumerate(places)]
    stages = {"near": Near()}
    rules = {"copies": Rule(score="nearness", above=above)}
    add_likeness(records, stages)
    decide(records, stages, rules)
    kept = {one.clip.id for one in records if one.decision == "kept"}
    found = nearest_pairs(records, stages, rules, table_of(records))["near"]
    pairs = found["pairs"]
    assert (found["column"], found["above"]) == ("nearness", above)
    assert all(pair["stays"] in kept and pair["goes"] in kept and pair["likeness"] <= above for pair in pairs)
    assert [pair["likeness"] for pair in pairs] == sorted((pair["likeness"] for pair in pairs), reverse=True)
    if not pairs:
        assert len({one.is_image for one in records if one.clip.id in kept}) == len(kept)
        return
    likeness = pairs[0]["likeness"]
    for threshold, is_dropped in ((likeness, False), (math.nextafter(likeness, 0), True)):
        again = [one for one in records if one.clip.id in kept]
        decide(again, stages, {"copies": Rule(score="nearness", above=threshold)})
        assert (pairs[0]["goes"] in {one.clip.id for one in again if one.decision == "dropped"}) == is_dropped


def test_a_stage_without_a_rule_has_pairs_and_no_threshold():
    records = [record(0, 0.5, False), record(1, 0.625, False)]
    add_likeness(records, {"near": Near()})
    found = nearest_pairs(records, {"near": Near()}, {}, table_of(records))["near"]
    assert found["above"] is None and found["pairs"] == [
        {"stays": records[1].clip.id, "goes": records[0].clip.id, "likeness": 0.875}
    ]


def test_the_max_alike_stand_together_and_not_with_the_clip_that_would_stand_for_all():
    records = [record(0, 0.1, False), record(1, 0.5, False), record(2, 0.625, False)]
    records[0].width = 4096
    add_likeness(records, {"near": Near()})
    pairs = nearest_pairs(records, {"near": Near()}, {}, table_of(records))["near"]["pairs"]
    assert {pairs[0]["stays"], pairs[0]["goes"]} == {records[1].clip.id, records[2].clip.id}
