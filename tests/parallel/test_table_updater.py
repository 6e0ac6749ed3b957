"""Tests that a step with embedding tables is that of one device with ordinary weights."""

import math
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import CorruptCheckpoint
from nemo_vfm.parallel.engine.nonfinite_guard import NonFinite
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.megatron.megatron_engine import MegatronEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.tables.table_updater import TableUpdater
from nemo_vfm.sparse.tables.row_adam import RowAdam
from nemo_vfm.sparse.tables.row_optimizer import RowSgd, RowWiseAdaGrad
from tests.support.ranks import on_ranks
from tests.support.toy_tables import LR, BagRecommender, Squares, started, steps, toy_batch, weights


def by_torch(clip: str | None, most: float) -> tuple[dict[str, Tensor], list[float]]:
    """Weights and norms after three steps in which torch alone computes everything."""
    torch.manual_seed(0)
    model, norms = BagRecommender(), []
    model.head.load_state_dict({n.removeprefix("head."): w for n, w in weights(started()).items() if "head" in n})
    clipped = list(model.parameters()) if clip == "all" else list(model.head.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for index in range(3):
        prepared = Squares().prepare(toy_batch(index), seed=0, training=True)
        losses_B = Squares().losses(model(**prepared.inputs), prepared)
        optimizer.zero_grad()
        ((losses_B * prepared.weight_B).sum() / prepared.weight_B.sum()).backward()
        norms.append(float(nn.utils.clip_grad_norm_(clipped, most)))
        optimizer.step()
    named = {"tables.items.weight": model.bag.weight, "head.weight": model.head.weight, "head.bias": model.head.bias}
    return {name: one.detach() for name, one in named.items()}, norms


@pytest.mark.parametrize("clip", ["all", "dense"])
@pytest.mark.parametrize("microbatches", [1, 3])
def test_rows_and_weights_move_as_parameters_of_torch_do(clip: Any, microbatches: int) -> None:
    expected, norms = by_torch(clip, 0.3)
    engine = started(ParallelPlan(microbatches=microbatches), clip_norm=0.3, clip=clip)
    results = [engine.step([toy_batch(index)]) for index in range(3)]
    assert [one.grad_norm for one in results] == pytest.approx(norms, rel=1e-5)
    assert min(norms) > 0.3, "every step is clipped"
    for name, found in weights(engine).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clip", ["all", "dense"])
def test_a_refused_step_leaves_rows_and_their_state_as_they_were(clip: Any) -> None:
    engines = [started(optimizer=RowAdam(0.1), clip=clip, nonfinite=NonFinite(action="skip")) for _ in range(2)]
    bad = toy_batch(0)
    bad.dense_BF[2] = math.nan
    assert engines[0].step([bad]).lr == 0
    for engine in engines:
        engine.step([toy_batch(1)])
    for group in ("model", "tables"):
        for name, tensor in engines[1].tensors()[group].items():
            assert torch.equal(engines[0].tensors()[group][name], tensor), name


def test_a_gradient_of_rows_that_is_no_number_refuses_the_step_where_only_the_others_are_clipped() -> None:
    engine = started(clip="dense", nonfinite=NonFinite(action="skip"))
    lookup = engine.model.tables.lookup  # type: ignore[union-attr, operator]

    def overflowing(features: Any) -> dict[str, Tensor]:
        found: dict[str, Tensor] = lookup(features)
        for one in found.values():
            one.register_hook(lambda grad: grad * math.inf)
        return found

    engine.model.tables.lookup = overflowing  # type: ignore[union-attr, assignment]
    before = weights(engine)
    assert math.isnan(engine.step([toy_batch(0)]).grad_norm)
    assert all(torch.equal(before[name], found) for name, found in weights(engine).items())


def test_the_schedule_moves_the_learning_rate_of_rows() -> None:
    whole, half = started(optimizer=RowSgd(LR)), started(optimizer=RowSgd(LR / 2))
    whole.set_lr(0.5)
    whole.step([toy_batch(0)])
    half.step([toy_batch(0)])
    assert torch.equal(weights(whole)["tables.items.weight"], weights(half)["tables.items.weight"])


def test_a_checkpoint_holds_rows_state_and_step() -> None:
    first = started(optimizer=RowAdam(0.1))
    first.step([toy_batch(0)])
    saved = {group: {name: one.clone() for name, one in tensors.items()} for group, tensors in first.tensors().items()}
    second = started(optimizer=RowAdam(0.1))
    second.load(saved)
    for engine in (first, second):
        engine.step([toy_batch(1)])
    for group, tensors in first.tensors().items():
        assert all(torch.equal(tensor, second.tensors()[group][name]) for name, tensor in tensors.items())
    assert int(second.tensors()["tables"]["tables.step"]) == 2


def test_the_state_of_another_row_optimizer_is_refused() -> None:
    saved = started(optimizer=RowAdam(0.1)).tensors()
    with pytest.raises(CorruptCheckpoint, match=r"missing \['tables.items.sum'\], unknown \['tables.items.exp"):
        started(optimizer=RowWiseAdaGrad(0.1)).load(saved)


def test_what_a_plan_keeps_counts_rows_and_their_state() -> None:
    parts = started().parts
    plan = TorchEngine().plan_for(1, ParallelPlan(), parts.model, parts.optimizer)
    assert plan.parameters == 7 * 4 + 6 + 1
    assert plan.state_bytes["tables"] == 7 * 4 * 4 + 8, "fp32 rows and a step"
    notes = TorchEngine().plan_for(2, ParallelPlan(tensor=2), parts.model, parts.optimizer).notes
    assert any("Use only parallel.replicate or parallel.shard" in note for note in notes)


def test_megatron_says_that_it_does_not_update_tables() -> None:
    parts = started().parts
    plan = MegatronEngine().plan_for(1, ParallelPlan(), parts.model, partial(torch.optim.AdamW, lr=0.1))
    assert any("engine=megatron does not update embedding tables" in note for note in plan.notes)


LAYOUTS = [(2, {"replicate": 2}), (2, {"shard": 2, "microbatches": 2}), (4, {"replicate": 2, "shard": 2})]


@pytest.mark.cluster
@pytest.mark.parametrize("clip", ["all", "dense"])
@pytest.mark.parametrize(("count", "degrees"), LAYOUTS, ids=str)
def test_several_ranks_see_one_devices_numbers_and_equal_rows(count: int, degrees: dict[str, Any], clip: str) -> None:
    how = RowWiseAdaGrad(0.1), {"clip_norm": 0.3, "clip": clip}
    alone = on_ranks(1, steps, {}, *how)[0]
    ranks = on_ranks(count, steps, degrees, *how)
    for found in ranks:
        assert found["weights"]["tables.items.weight"] == ranks[0]["weights"]["tables.items.weight"], "bit by bit"
        for name in ("loss", "norm"):
            assert found[name] == pytest.approx(alone[name], rel=1e-5)
        for name, expected in alone["weights"].items():
            torch.testing.assert_close(
                torch.tensor(found["weights"][name]), torch.tensor(expected), rtol=1e-5, atol=1e-6
            )


def without_exchange(rank: int, *arguments: Any) -> dict[str, Any]:
    with patch.object(TableUpdater, "reduce", lambda self: None):
        return steps(rank, *arguments)


@pytest.mark.cluster
def test_a_missing_exchange_is_seen() -> None:
    how = {"replicate": 2}, RowWiseAdaGrad(0.1), {"clip_norm": None}
    first, second = on_ranks(2, without_exchange, *how)
    assert first["weights"]["tables.items.weight"] != second["weights"]["tables.items.weight"]
