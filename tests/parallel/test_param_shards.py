"""Tests that a plan's bytes for each device are those that an engine keeps on real ranks."""

from functools import partial
from typing import Any

import pytest
import torch

from nemo_vfm.parallel.apply.local_shard import local
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import on_meta, state_of
from tests.support.combinations import cases
from tests.support.layouts import cosmos, own, started
from tests.support.ranks import on_ranks

PLANS = [
    {"shard": 4},
    {"shard": 2, "replicate": 2},
    {"tensor": 4},
    {"tensor": 2, "shard": 2},
    {"context": 2, "shard": 2},
    {"pipeline": 2, "microbatches": 2},
    {"pipeline": 2, "shard": 2, "microbatches": 2},
    {"pipeline": 2, "virtual": 2, "shard": 2, "microbatches": 2},
    {"pipeline": 2, "virtual": 2, "tensor": 2, "microbatches": 2},
]
adam = partial(torch.optim.AdamW, lr=1e-3)


def kept(rank: int, degrees: dict[str, Any]) -> dict[str, int]:
    """Bytes on this rank after a step."""
    plan = ParallelPlan(**degrees)
    engine = started(plan, cosmos, adam)
    engine.step([own(plan, rank, 0)])
    parameters = list(engine.model.parameters())
    state = [local(t) for name, t in engine.tensors()["optimizer"].items() if local(t).dim() and "step" not in name]
    return {
        "weights": sum(local(parameter).nbytes for parameter in parameters),
        "gradients": sum(local(parameter.grad).nbytes for parameter in parameters),
        "optimizer": sum(tensor.nbytes for tensor in state),
    }


@pytest.mark.cluster  # several ranks
@pytest.mark.parametrize("degrees", cases(PLANS, [PLANS[1], PLANS[3], PLANS[-2], PLANS[-1]]), ids=str)
def test_a_plans_bytes_are_those_of_the_rank_that_keeps_most(degrees: dict[str, Any]):
    plan = ParallelPlan(**degrees)
    found = on_ranks(plan.world, kept, degrees)
    _, said = state_of(cosmos, adam, plan)
    most = max(found, key=lambda one: one["weights"])
    assert (said["weights"], said["gradients"]) == (most["weights"], most["gradients"])
    with torch.device("meta"):
        parameters = len(list(cosmos().parameters()))
    assert 0 <= said["optimizer"] - most["optimizer"] <= 4 * parameters, "but for a step's number for each parameter"


def test_one_device_keeps_all_and_shards_a_part():
    count, whole = state_of(cosmos, adam)
    assert whole["weights"] == 4 * count
    assert state_of(cosmos, adam, ParallelPlan(replicate=4))[1] == whole
    assert state_of(cosmos, adam, ParallelPlan(shard=4))[1]["weights"] < 0.27 * whole["weights"]


def test_a_factory_is_asked_once_and_other_factories_by_themselves():
    asked = []

    def factory():
        asked.append(1)
        return torch.nn.Linear(2, 3)

    def other():
        return torch.nn.Linear(3, 4)

    built = on_meta(factory)
    assert on_meta(other).in_features == 3 and on_meta(factory) is built
    assert len(asked) == 1 and built.weight.is_meta
    for _ in range(8):
        on_meta(lambda: torch.nn.Linear(1, 1))
    assert on_meta(factory) is not built, "no more than eight are kept"
