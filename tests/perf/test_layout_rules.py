"""Tests which rules of thumb apply to a size and which a layout follows."""

import pytest

from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf.layout_rules import RULES, RuleSize, judge_layout

# The largest that are small and the shortest that are long, and sizes of the paper.
SMALL_SHORT, SMALL_LONG = RuleSize(10_000_000_000, 24_576, 8), RuleSize(7_000_000_000, 73_728, 8)
LARGE_SHORT, LARGE_LONG = RuleSize(28_000_000_000, 8192, 8), RuleSize(10_000_000_001, 24_577, 8)


def followed(plan: ParallelPlan, size: RuleSize) -> dict[int, bool]:
    return {rule.number: follows for rule, follows in judge_layout(plan, size)}


def test_there_are_five_and_each_size_has_its_own():
    assert [rule.number for rule in RULES] == [1, 2, 3, 4, 5]
    spoken = [set(followed(ParallelPlan(), size)) for size in (SMALL_SHORT, SMALL_LONG, LARGE_SHORT, LARGE_LONG)]
    assert spoken == [{1}, {2, 3}, {3, 4}, {3, 5}]


@pytest.mark.parametrize(("degrees", "size", "expected"), [
    ({"shard": 64}, SMALL_SHORT, {1: True}),
    ({"tensor": 2, "shard": 32}, SMALL_SHORT, {1: False}),
    ({"context": 8, "shard": 8}, SMALL_LONG, {2: True, 3: True}),
    ({"tensor": 4, "context": 2}, SMALL_LONG, {2: False, 3: True}),
    ({"shard": 64}, SMALL_LONG, {2: False, 3: False}),
    ({"tensor": 8, "pipeline": 4, "microbatches": 4}, LARGE_SHORT, {3: True, 4: True}),
    ({"tensor": 16, "shard": 4}, LARGE_SHORT, {3: True, 4: False}),
    ({"shard": 2, "replicate": 32}, LARGE_SHORT, {3: True, 4: False}),
    ({"tensor": 2, "replicate": 32}, LARGE_SHORT, {3: True, 4: True}),
    ({"replicate": 64}, LARGE_SHORT, {3: False, 4: False}),
    ({"tensor": 4, "pipeline": 2, "context": 4, "microbatches": 2}, LARGE_LONG, {3: True, 5: True}),
    ({"context": 8, "shard": 8}, LARGE_LONG, {3: True, 5: False}),
])  # fmt: skip
def test_a_layout_follows_or_does_not(degrees, size, expected):
    assert followed(ParallelPlan(**degrees), size) == expected
