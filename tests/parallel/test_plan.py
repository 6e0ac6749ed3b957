"""Tests that a plan's arithmetic holds for any number of devices, and that misfits are refused with numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_vfm.parallel.plan.plan import AXES, Coordinate, ParallelPlan

degrees = st.sampled_from([1, 2, 3, 4, 8])
plans = st.builds(
    ParallelPlan, tensor=degrees, pipeline=degrees, context=degrees, shard=degrees, replicate=degrees,
    microbatches=st.just(8),
)  # fmt: skip


@given(plans, st.data())
def test_every_rank_has_a_place_of_its_own_and_the_tensor_axis_is_fastest(plan, data):
    rank = data.draw(st.integers(0, plan.world - 1))
    at = plan.coordinate(rank)
    back = 0
    for axis, size in zip(AXES, plan.sizes, strict=True):
        assert 0 <= getattr(at, axis) < size
        back = back * size + getattr(at, axis)
    assert back == rank
    assert 0 <= plan.data_rank(rank) < plan.data


def test_neighbours_are_tensor_peers_and_share_their_samples_with_context_and_pipeline_peers():
    plan = ParallelPlan(tensor=2, context=2, shard=2, pipeline=2, microbatches=2)
    assert plan.coordinate(1) == Coordinate(0, 0, 0, 0, 1)
    assert plan.coordinate(8) == Coordinate(1, 0, 0, 0, 0)
    assert [plan.data_rank(rank) for rank in range(16)] == [0, 0, 0, 0, 1, 1, 1, 1] * 2


@pytest.mark.parametrize(("degrees", "words"), [
    ({"tensor": 0}, "parallel.tensor must be a whole number of at least 1, got 0"),
    ({"shard": 2.0}, "parallel.shard must be a whole number"),
    ({"sequence": True}, "give parallel.tensor above 1"),
    ({"virtual": 2}, "needs parallel.pipeline above 1"),
    ({"pipeline": 4, "microbatches": 3}, "parallel.microbatches = 3 is below parallel.pipeline = 4"),
    ({"pipeline": 2, "microbatches": 2, "virtual": 2, "schedule": "1f1b"}, "use interleaved"),
    ({"pipeline": 2, "microbatches": 2, "schedule": "zero_bubble"}, "virtual of at least 2"),
    ({"context": 4, "attention": "ring_ulysses", "ulysses": 3}, "must divide parallel.context = 4"),
    ({"context": 4, "ulysses": 2}, "belongs to attention: ring_ulysses"),
])  # fmt: skip
def test_degrees_that_do_not_fit_are_refused_with_their_numbers(degrees, words):
    with pytest.raises(ValueError, match=words):
        ParallelPlan(**degrees)


def test_another_number_of_devices_is_refused_with_product_and_factors_and_what_would_fit():
    plan = ParallelPlan(tensor=2, shard=4)
    plan.require(8)
    with pytest.raises(ValueError, match=r"8 devices \(shard 4 x tensor 2\), but there are 32; parallel.replicate=4"):
        plan.require(32)
    with pytest.raises(ValueError, match=r"but there are 12$"):
        plan.require(12)
    with pytest.raises(ValueError, match="no rank 8 among 8"):
        plan.coordinate(8)
