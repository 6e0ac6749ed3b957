"""Tests that a sampling plan assigns distinct work to every rank, and refuses options without use in sampling."""

from collections import Counter
from itertools import product

import pytest

from nemo_vfm.parallel.plan.sampling_plan import SamplingPlan

PLANS = [
    SamplingPlan(**dict(zip(("replicate", "shard", "guidance", "context", "tensor"), degrees, strict=True)))
    for degrees in product((1, 3), (1, 2), (1, 2), (1, 2), (1, 2))
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_each_group_has_one_writer_and_equally_many_ranks_per_estimate(plan: SamplingPlan) -> None:
    ranks = range(plan.world)
    assert Counter(plan.data_rank(rank) for rank in ranks if plan.writes(rank)) == dict.fromkeys(range(plan.data), 1)
    each = Counter((plan.data_rank(rank), plan.branch(rank)) for rank in ranks)
    assert each == dict.fromkeys(product(range(plan.data), range(plan.guidance)), plan.context * plan.tensor)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_layouts_data_rank_combines_prompts_and_estimate(plan: SamplingPlan) -> None:
    for rank in range(plan.world):
        assert plan.layout().data_rank(rank) == plan.data_rank(rank) * plan.guidance + plan.branch(rank)


@pytest.mark.parametrize(("degrees", "message"), [
    ({"pipeline": 2}, "each sampling step needs the previous one"), ({"guidance": 3}, "must be 1 or 2"),
    ({"shard": 2, "weights": "whole"}, "use parallel.replicate = 2"), ({"context": 0}, "at least 1, got 0"),
    ({"sequence": True}, "give parallel.tensor above 1"), ({"weights": "half"}, "sharded or whole"),
], ids=str)  # fmt: skip
def test_invalid_degrees_are_refused_with_a_suggestion(degrees: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingPlan(**degrees)  # type: ignore[arg-type]


def test_another_number_of_devices_is_refused_with_the_factors() -> None:
    with pytest.raises(ValueError, match=r"for 4 devices \(guidance 2 x context 2\), but there are 8; parallel.replic"):
        SamplingPlan(guidance=2, context=2).require(8)


@pytest.mark.parametrize(("degrees", "sharded"), [
    ({}, False), ({"replicate": 2, "tensor": 2}, False), ({"guidance": 2}, True), ({"context": 2}, True),
    ({"guidance": 2, "context": 2, "weights": "whole"}, False),
], ids=str)  # fmt: skip
def test_weights_are_sharded_over_ranks_of_one_copy(
    degrees: dict[str, int], sharded: bool
) -> None:  # fmt: skip
    assert SamplingPlan(**degrees).is_sharded == sharded  # type: ignore[arg-type]
