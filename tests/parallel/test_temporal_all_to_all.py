"""Tests that every layout of an ST-DiT gives one device's numbers, and that a wrong order of frames is detected."""

from typing import Any
from unittest.mock import patch

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.context.collectives import count_traffic
from nemo_vfm.parallel.layers import temporal_all_to_all
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.support.combinations import cases
from tests.support.layouts import LONG, Doubling, one_device, own, space_time, started, steps
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.cluster  # several ranks

LAYOUTS = [
    {"context": 2},
    {"context": 4},
    {"tensor": 2, "sequence": True},
    {"tensor": 2, "shard": 2},
    {"context": 2, "tensor": 2, "sequence": True},
    {"context": 2, "shard": 2},
]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return one_device(space_time, Doubling(LONG))


def close(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(
        found[name] == pytest.approx(expected[name], rel=rel)
        for name, rel in (("loss", 1e-5), ("norm", 1e-5), ("validation", 1e-5), ("gradients", 1e-4))
    )


@pytest.mark.parametrize("degrees", cases(LAYOUTS, [LAYOUTS[0], LAYOUTS[3], LAYOUTS[4]]), ids=str)
def test_every_layout_of_an_st_dit_has_one_devices_losses_and_gradients(alone: dict[str, Any], degrees: dict[str, Any]):
    for found in on_ranks(ParallelPlan(**degrees).world, steps, degrees, None, 2, space_time, Doubling(LONG)):
        assert close(found, alone), (found, alone)


def in_plain_order(rank: int, degrees: dict[str, Any]) -> dict[str, Any]:
    """Frames numbered as if tensor ranks had not split tokens."""
    from nemo_vfm.models import st_dit

    with patch.object(st_dit, "frame_order", lambda frames, device: torch.arange(frames)):
        return steps(rank, degrees, None, 2, space_time, Doubling(LONG))


def test_frames_in_the_wrong_order_are_seen(alone: dict[str, Any]):
    """Four ranks of both kinds: with one of the two the order is the plain one."""
    assert not close(on_ranks(4, in_plain_order, {"context": 2, "tensor": 2, "sequence": True})[0], alone)


def sent(rank: int, reaches: tuple[str, ...]) -> float:
    """Bytes that a rank sends in one forward of a block with these attentions, beyond one of the full kind."""
    from functools import partial

    plan = ParallelPlan(context=2)
    engine = started(plan, partial(space_time, depth=1, reaches=reaches))
    prepared = engine.parts.task.prepare(own(plan, rank, 0), seed=3, training=True)
    prepared.inputs["latents_BCTHW"] = torch.randn(8, *LONG)
    with torch.no_grad(), count_traffic() as traffic:
        engine.model(**prepared.inputs)
    return traffic.sent


def test_attention_along_time_costs_two_exchanges_of_the_tokens_and_across_a_frame_none():
    tokens = 8 * 4 * 8 // 2  # samples x frames x places, of one rank
    base = on_ranks(2, sent, ("full",))[0]
    assert on_ranks(2, sent, ("full", "spatial"))[0] == base
    both = on_ranks(2, sent, ("full", "temporal", "spatial"))[0]
    assert both - base == tokens * 48 * 4  # half of them, there and back


def refused(rank: int, degrees: dict[str, Any]) -> str:
    with pytest.raises(UserError) as error:
        steps(rank, degrees, None, 1, space_time)
    return str(error.value)


def test_frames_that_ranks_do_not_divide_are_refused_with_the_numbers():
    assert "2 latent frames cannot be divided among 4 context x 1 tensor" in on_ranks(4, refused, {"context": 4})[0]
    split = {"context": 2, "tensor": 2, "sequence": True}
    assert "2 latent frames cannot be divided among 2 context x 2 tensor" in on_ranks(4, refused, split)[0]


def test_on_one_device_lines_are_frames_of_a_place_and_come_back():
    x = torch.randn(2, 3 * 4, 5)
    there = temporal_all_to_all.to_lines(x, frames=3)
    torch.testing.assert_close(there, x.view(2, 3, 4, 5).transpose(1, 2).reshape(8, 3, 5), rtol=0, atol=0)
    torch.testing.assert_close(temporal_all_to_all.from_lines(there, batch=2), x, rtol=0, atol=0)
    assert temporal_all_to_all.frame_order(3, x.device).tolist() == [0, 1, 2]
