"""Tests that packed training gives the loss and the gradients of the samples one by one, on any layout."""

from typing import Any
from unittest.mock import patch

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.models.dit import BlockContext
from tests.support.combinations import cases
from tests.support.packs import UNSURE, furthest, step
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.cluster  # several ranks

SAME = 1e-5
LAYOUTS = [
    (1, {}),
    (1, {"microbatches": 3}),
    (2, {"context": 2}),
    (2, {"context": 2, "attention": "ulysses"}),
    (2, {"context": 2, "attention": "all_gather"}),
    (2, {"shard": 2}),
    (2, {"shard": 2, "microbatches": 4}),
    (2, {"replicate": 2}),
    (2, {"tensor": 2}),
    (2, {"tensor": 2, "sequence": True}),
    (4, {"tensor": 2, "sequence": True, "context": 2}),
    (4, {"context": 2, "shard": 2}),
]


@pytest.fixture(scope="module")
def one_by_one() -> dict[str, Any]:
    return on_ranks(1, step, {}, None, False)[0]


@pytest.mark.parametrize(("count", "degrees"), cases(LAYOUTS, [LAYOUTS[n] for n in (1, 3, 4, 6, 9, 10)]), ids=str)
def test_packed_on_any_layout_is_one_by_one_on_one_device(
    one_by_one: dict[str, Any], count: int, degrees: dict[str, Any]
):
    assert one_by_one["samples"] == 8 and all(one.norm() > 0 for one in one_by_one["gradients"].values())
    for found in on_ranks(count, step, degrees):
        assert furthest(found, one_by_one) < SAME


@pytest.mark.parametrize(
    ("count", "degrees"), [(1, {}), (2, {"context": 2}), (2, {"tensor": 2, "sequence": True})], ids=str
)
def test_so_it_is_with_learned_positions_low_rank_modulations_and_uncertainty(count: int, degrees: dict[str, Any]):
    expected = on_ranks(1, step, {}, UNSURE, False)[0]
    for found in on_ranks(count, step, degrees, UNSURE):
        assert furthest(found, expected) < SAME


def test_so_it_is_where_each_token_counts_alike_and_that_is_another_mean(one_by_one: dict[str, Any]):
    expected = on_ranks(1, step, {}, None, False, "token")[0]
    for found in on_ranks(2, step, {"shard": 2}, None, True, "token"):
        assert furthest(found, expected) < SAME
    assert furthest(one_by_one, expected) > 0.1


def test_ranks_with_different_numbers_of_samples_can_run_them_one_by_one(one_by_one: dict[str, Any]):
    for found in on_ranks(2, step, {"shard": 2}, None, False):
        assert furthest(found, one_by_one) < SAME


def refused(rank: int) -> str:
    try:
        step(rank, {"pipeline": 2, "microbatches": 2})
    except UserError as error:
        return str(error)
    return "nothing was refused"


def test_a_pipeline_refuses_microbatches_of_unequal_lengths():
    for said in on_ranks(2, refused):
        assert "A pipeline needs microbatches of one shape, but these differ" in said


def leaking(rank: int, degrees: dict[str, Any]) -> dict[str, Any]:
    """A step in which samples see each other."""
    with patch.object(BlockContext, "segments", property(lambda context: (sum(context.row.segments),))):
        return step(rank, degrees)


@pytest.mark.parametrize(("count", "degrees"), [(1, {}), (2, {"context": 2})], ids=str)
def test_samples_that_see_each_other_are_noticed(one_by_one: dict[str, Any], count: int, degrees: dict[str, Any]):
    for found in on_ranks(count, leaking, degrees):
        assert furthest(found, one_by_one) > 1e-2
