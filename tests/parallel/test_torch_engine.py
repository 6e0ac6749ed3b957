"""Tests that every layout gives one device's losses, gradients and validation, and that a missing sum is detected."""

from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.parallel.engine import weight_updater
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.support import layouts
from tests.support.combinations import cases
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.cluster  # several ranks

LAYOUTS = [
    (2, {"replicate": 2}),
    (2, {"shard": 2}),
    (2, {"shard": 2, "microbatches": 2}),
    (2, {"tensor": 2}),
    (2, {"tensor": 2, "sequence": True}),
    (2, {"context": 2}),
    (2, {"context": 2, "attention": "all_gather"}),
    (4, {"replicate": 2, "shard": 2}),
    (4, {"tensor": 4}),
    (4, {"tensor": 2, "sequence": True, "shard": 2}),
    (4, {"tensor": 2, "sequence": True, "replicate": 2}),
    (4, {"tensor": 2, "sequence": True, "context": 2}),
    (4, {"context": 4, "attention": "ulysses"}),
    (4, {"context": 4, "attention": "ring_ulysses", "ulysses": 2}),
    (4, {"context": 2, "shard": 2}),
]


#: Each choice once, and what meets in one rank.
OFTEN = [LAYOUTS[place] for place in (2, 3, 6, 7, 9, 13)]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return layouts.one_device()


def close(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return found["samples"] == expected["samples"] and all(
        found[name] == pytest.approx(expected[name], rel=rel)
        for name, rel in (("loss", 1e-5), ("norm", 1e-5), ("validation", 1e-5), ("gradients", 1e-4))
    )


@pytest.mark.parametrize(("count", "degrees"), cases(LAYOUTS, OFTEN), ids=str)
def test_every_rank_of_a_layout_sees_one_devices_numbers(alone: dict[str, Any], count: int, degrees: dict[str, Any]):
    assert alone["samples"] == [layouts.SAMPLES] * 2
    for found in on_ranks(count, layouts.steps, degrees):
        assert close(found, alone), (found, alone)


SEQUENCE: dict[str, Any] = {"tensor": 2, "sequence": True}
PIPELINE: dict[str, Any] = {"pipeline": 2, "microbatches": 2}


@pytest.mark.parametrize("degrees", cases(
    [SEQUENCE, {"shard": 2}, {"context": 2, "replicate": 2}, {"shard": 2, "tensor": 2}, PIPELINE, PIPELINE | SEQUENCE],
    [{"context": 2, "replicate": 2}, PIPELINE | SEQUENCE],
), ids=str)  # fmt: skip
def test_modulations_of_low_rank_and_learned_positions_have_one_devices_gradients(degrees: dict[str, Any]):
    expected = layouts.one_device(layouts.cosmos)
    for found in on_ranks(ParallelPlan(**degrees).world, layouts.steps, degrees, None, 2, layouts.cosmos):
        if "pipeline" in degrees:  # each rank has gradients of its own blocks alone
            found = found | {"gradients": expected["gradients"]}
        assert close(found, expected), (found, expected)


@pytest.mark.parametrize(
    ("model", "task"),
    [(layouts.cosmos_25, layouts.GIVEN), (layouts.wan, layouts.IN_CHANNELS)],
    ids=["cosmos 2.5", "wan"],
)
@pytest.mark.parametrize("degrees", cases(
    [{"tensor": 2}, SEQUENCE, {"shard": 2}, {"context": 2}, {"shard": 2, "tensor": 2}, PIPELINE | SEQUENCE,
     {"context": 2} | SEQUENCE],
    [PIPELINE | SEQUENCE],
), ids=str)  # fmt: skip
def test_pretrained_video_models_with_given_frames_have_one_devices_gradients(
    model: Any, task: layouts.Doubling, degrees: dict[str, Any]
):
    expected = layouts.one_device(model, task)
    assert all(expected["gradients"]), "every parameter has a part in the output"
    for found in on_ranks(ParallelPlan(**degrees).world, layouts.steps, degrees, None, 2, model, task):
        if "pipeline" in degrees:  # each rank has gradients of its own blocks alone
            found = found | {"gradients": expected["gradients"]}
        assert close(found, expected), (found, expected)


def rounded(rank: int) -> dict[str, float]:
    """The share of each parameter's gradient here that is a bf16 number; all weights are 1, so factors are exact."""
    engine, plan = TorchEngine(clip_norm=None), ParallelPlan(shard=2)
    engine = engine.start(
        EngineInputs(layouts.tiny, layouts.Doubling(), partial(torch.optim.SGD, lr=0.0), Precision("bf16"), 3, plan)
    )
    mine = layouts.own(plan, rank, 0)
    mine.weight_B[:] = 1.0
    engine.step([mine])
    gradients_ = {name: one.grad.to_local() for name, one in engine.model.named_parameters() if one.grad is not None}  # type: ignore[attr-defined]
    return {name: float((x == x.bfloat16()).float().mean()) for name, x in gradients_.items() if x.numel() > 256}


def test_sharded_gradients_are_summed_in_fp32_where_the_arithmetic_is_bf16():
    """The mean of two bf16 numbers is mostly none: a sum in bf16 would have rounded every one."""
    for shares in on_ranks(2, rounded):
        assert len(shares) > 20 and max(shares.values()) < 0.8, shares


@pytest.mark.parametrize("how", [{"recompute": "blocks"}, {"offload_optimizer": True}], ids=str)
@pytest.mark.parametrize(
    ("count", "degrees"), cases([(1, {}), (4, {"shard": 2} | SEQUENCE)], [(4, {"shard": 2} | SEQUENCE)]), ids=str
)
def test_recomputing_and_offloading_change_no_number(
    alone: dict[str, Any], count: int, degrees: dict[str, Any], how: dict[str, Any]
):
    for found in on_ranks(count, layouts.steps, degrees, how):
        assert close(found, alone)


def without(rank: int, degrees: dict[str, Any]) -> dict[str, Any]:
    """The first step with one sum left out on purpose."""
    with patch.object(weight_updater, "sum_partial", lambda holding, mesh: None):
        return layouts.steps(rank, degrees, count=1)


@pytest.mark.parametrize("degrees", [{"tensor": 2}, {"tensor": 2, "sequence": True}], ids=str)
def test_a_sum_that_is_left_out_is_seen(degrees: dict[str, Any]):
    expected, found = on_ranks(2, layouts.steps, degrees, None, 1)[0], on_ranks(2, without, degrees)[0]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    wrong = [abs(one / two - 1) > 0.01 for one, two in zip(found["gradients"], expected["gradients"], strict=True)]
    assert sum(wrong) >= 4 * 4, "the four norms of queries and keys in each of four blocks, at least"


def alike(rank: int, degrees: dict[str, Any]) -> float:
    """The norm of a step in which every rank was given the first rank's samples."""
    plan = ParallelPlan(**degrees)
    return layouts.started(plan).step([layouts.own(plan, 0, 0)]).grad_norm


@pytest.mark.parametrize("degrees", [{"shard": 2}, {"replicate": 2}], ids=str)
def test_ranks_with_the_same_samples_are_not_taken_for_ranks_with_different_ones(
    alone: dict[str, Any], degrees: dict[str, Any]
):
    assert abs(on_ranks(2, alike, degrees)[0] / alone["norm"][0] - 1) > 1e-3


def refused(rank: int, degrees: dict[str, Any], changes: dict[str, Any]) -> str:
    plan = ParallelPlan(**degrees)
    try:
        engine = layouts.started(plan, partial(layouts.tiny, **changes.get("model", {})), changes.get("optimizer"))
        engine.step([layouts.own(plan, rank, 0)])
    except (UserError, ValueError) as error:
        return str(error)
    return "nothing was refused"


@pytest.mark.parametrize(("degrees", "changes", "words"), [
    ({"tensor": 2, "shard": 2}, {}, "the plan is for 4 devices (shard 2 x tensor 2), but there are 2"),
    ({"tensor": 2}, {"model": {"width": 54, "heads": 3}}, "3 attention heads cannot be divided by 2"),
    ({"context": 2, "attention": "ulysses"}, {"model": {"width": 54, "heads": 3}}, "3 attention heads cannot"),
    ({"tensor": 2}, {"model": {"width": 48, "mlp_ratio": 1.0625}}, "mlp.up has 51 out_features"),
    ({"context": 2}, {"model": {"patch": (2, 4, 8)}}, "1 tokens cannot be divided among 2 ranks"),
    ({"shard": 2}, {"optimizer": partial(torch.optim.Muon, lr=1e-3)}, "Muon needs whole matrices"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_numbers(degrees: dict[str, Any], changes: dict[str, Any], words: str):
    for said in on_ranks(2, refused, degrees, changes):
        assert words in said
