"""Tests that a non-finite loss on one rank makes all ranks skip or stop together, with the same message."""

import math
from typing import Any, Literal

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.parallel.engine.nonfinite_guard import NonFinite
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.support.layouts import SAMPLES, own, started, whole
from tests.support.ranks import on_ranks


def asked(rank: int, action: Literal["stop", "skip"], most: int, weights: list[list[float]]) -> list[Any]:
    """Whether this rank updates, step by step; weights[step][rank] is that of the rank's last sample."""
    plan = ParallelPlan(shard=len(weights[0]))
    engine, told = started(plan, nonfinite=NonFinite(action=action, max_in_a_row=most)), []
    for step, by_rank in enumerate(weights):
        given = own(plan, rank, step)
        given.weight_B[-1] = by_rank[rank]
        before = [whole(parameter).clone() for parameter in engine.model.parameters()]
        try:
            told.append(engine.step([given]).lr > 0)
        except UserError as error:
            assert all(map(torch.equal, before, map(whole, engine.model.parameters())))
            return [*told, str(error)]
    return told


@pytest.mark.cluster  # several ranks
def test_one_ranks_nan_stops_all_with_the_step_the_rank_and_its_samples():
    told = on_ranks(2, asked, "stop", 8, [[1.0, 2.0], [1.0, math.nan]])
    assert told[0] == told[1]
    may, why = told[0]
    assert may and "loss (nan)" in why and "at batch 1" in why and "on rank 1 of 2" in why
    assert "samples 1-xxxx, 1-xxxxx, 1-xxxxxx, 1-xxxxxxx" in why and "No weights were changed" in why


@pytest.mark.cluster  # several ranks
def test_skipped_steps_are_counted_in_a_row_and_too_many_stop_all():
    nan, fine = [math.inf, 1.0], [1.0, 1.0]
    told = on_ranks(2, asked, "skip", 2, [nan, fine, nan, nan])
    assert told[0] == told[1]
    assert told[0][:3] == [False, True, False]
    assert "2 in a row; engine.nonfinite.max_in_a_row is 2" in told[0][3] and "on rank 0 of 2" in told[0][3]


def test_a_step_that_is_fine_ends_a_row_of_skipped_ones():
    nan, fine = [math.nan], [1.0]
    told = asked(0, "skip", 2, [nan, fine, nan, fine, nan, nan])
    assert told[:5] == [False, True, False, True, False] and "2 in a row" in told[5]


def poisoned(rank: int, degrees: dict[str, Any], action: Literal["stop", "skip"]) -> dict[str, Any]:
    """Three steps, of which the second has a sample without a number; weights before and after it."""
    plan = ParallelPlan(**degrees)
    engine = started(plan, nonfinite=NonFinite(action=action))
    engine.step([own(plan, rank, 0)])
    before = {name: whole(tensor).clone() for name, tensor in engine.model.state_dict().items()}
    bad: Batch = own(plan, rank, 1)
    if f"1-{'x' * (SAMPLES - 1)}" in bad.keys:
        bad.weight_B[-1] = math.nan
    result = engine.step([bad])
    after = {name: whole(tensor).clone() for name, tensor in engine.model.state_dict().items()}
    last = engine.step([own(plan, rank, 2)])
    same = all(torch.equal(before[name], after[name]) for name in before)
    return {"same": same, "lr": result.lr, "loss": result.loss, "last": last.loss}


@pytest.mark.cluster  # several ranks
@pytest.mark.parametrize("degrees", [{"shard": 2}, {"replicate": 2}, {"tensor": 2}], ids=str)
def test_a_skipped_step_changes_no_weight_on_any_rank_and_the_next_is_that_of_one_device(degrees):
    alone = on_ranks(1, poisoned, {}, "skip")[0]
    found = on_ranks(2, poisoned, degrees, "skip")
    assert all(one["same"] and one["lr"] == 0 and math.isnan(one["loss"]) for one in [alone, *found])
    assert [one["last"] for one in found] == pytest.approx([alone["last"]] * 2, rel=1e-5)
