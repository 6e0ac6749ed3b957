"""Tests that two equal layouts agree everywhere, and that a missing sum is named by its place."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.tensor import DTensor

from nemo_vfm.core.precision import Precision
from nemo_vfm.models.dit import DiT
from nemo_vfm.parallel.apply import apply_parallelism
from nemo_vfm.parallel.engine import weight_updater
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.verify import activation_recorder
from nemo_vfm.parallel.verify.divergence import DivergenceReport, Side, compare
from nemo_vfm.parallel.verify.tiny_training import TinyTraining, rehearsal_of
from tests.support.combinations import cases
from tests.support.layouts import FromBatch
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.cluster  # several ranks

HEADS, COUNT = 4, 2
small = partial(
    DiT, in_channels=4, text_dim=16, width=48, depth=2, heads=HEADS, text_in_modulation=True, position_embedding=True
)


@pytest.fixture(scope="module")
def rehearsal() -> TinyTraining:
    return rehearsal_of(small, FromBatch(), partial(torch.optim.AdamW, lr=1e-3), seed=3)[0]


@pytest.fixture(scope="module")
def alone(rehearsal: TinyTraining) -> list[activation_recorder.RecordedStep]:
    found: list[activation_recorder.RecordedStep] = on_ranks(1, activation_recorder.steps, rehearsal, {}, COUNT)[0]
    return found


def side(
    name: str, rehearsal: TinyTraining, run: Callable[..., Any] = activation_recorder.steps, **degrees: Any
) -> Side:
    plan = ParallelPlan(**degrees)
    return Side(name, plan, on_ranks(plan.world, run, rehearsal, degrees, COUNT))


def told(alone: list[activation_recorder.RecordedStep], a: Side, b: Side, tolerance: float = 1e-4) -> DivergenceReport:
    return compare(alone, a, b, heads=HEADS, tolerance=tolerance)


BOTH: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"tensor": 2}),
    ({"shard": 2}, {"tensor": 2, "sequence": True}),
    ({"context": 2}, {"pipeline": 2, "microbatches": 2}),
    ({"tensor": 2, "sequence": True, "context": 2}, {"shard": 2, "pipeline": 2, "microbatches": 4}),
]


@pytest.mark.parametrize(("one", "other"), cases(BOTH, BOTH[1:3]), ids=str)
def test_layouts_that_are_right_agree_at_every_module_and_parameter(alone, rehearsal, one, other):
    found = told(alone, side("A", rehearsal, **one), side("B", rehearsal, **other))
    assert found.parting is None and not found.unknown, found
    modules = found.compared[1, "forward"]
    assert modules > 40 and found.compared[2, "forward"] == modules
    assert found.compared[1, "gradient"] == found.compared[1, "weight"] == len(alone[0].weights)


def without_a_sum_of_outputs(rank: int, *arguments: Any) -> Any:
    """One row-wise linear keeps its own part of the sum."""
    kept = apply_parallelism.split_linears

    def mistaken(model: torch.nn.Module, mesh: Any) -> None:
        kept(model, mesh)
        linear = model.get_submodule("blocks.1.cross_attention.out")
        linear._forward_hooks.clear()
        linear.register_forward_hook(
            lambda _, inputs, output: output.to_local() if isinstance(output, DTensor) else output
        )

    with patch.object(apply_parallelism, "split_linears", mistaken):
        return activation_recorder.steps(rank, *arguments)


def without_sums_of_norms(rank: int, *arguments: Any) -> Any:
    """Gradients that each tensor rank has a part of stay parts, on rank 1's word only where heads are."""
    kept = weight_updater.owned_params

    def mistaken(model: torch.nn.Module, mesh: Any) -> Any:
        wrong = "blocks.0.self_attention.k_norm.weight"
        return [replace(one, over_tensor=False) if one.name == wrong else one for one in kept(model, mesh)]

    with patch.object(weight_updater, "owned_params", mistaken):
        return activation_recorder.steps(rank, *arguments)


@pytest.mark.parametrize(("right", "wrong", "phase", "name"), [
    ({"shard": 2}, without_a_sum_of_outputs, "forward", "blocks.1.cross_attention.out"),
    ({}, without_sums_of_norms, "gradient", "blocks.0.self_attention.k_norm.weight"),
], ids=["outputs", "gradients"])  # fmt: skip
def test_what_is_not_summed_over_tensor_ranks_is_named(alone, rehearsal, right, wrong, phase, name):
    found = told(alone, side("A", rehearsal, **right), side("B", rehearsal, wrong, tensor=2)).parting
    assert found is not None and (found.step, found.phase, found.name, found.side) == (1, phase, name, "B")


def with_a_rank_that_is_off(rank: int, *arguments: Any) -> Any:
    """One rank's last block gives a little more."""
    kept = TinyTraining.start

    def mistaken(self: TinyTraining, plan: ParallelPlan) -> Any:
        engine = kept(self, plan)
        if rank == 1:
            engine.model.get_submodule("blocks.1.mlp").register_forward_hook(lambda _, inputs, output: 1.01 * output)
        return engine

    with patch.object(TinyTraining, "start", mistaken):
        return activation_recorder.steps(rank, *arguments)


def test_the_rank_that_departs_is_named_on_whichever_side_it_is(alone, rehearsal):
    right, wrong = side("B", rehearsal, shard=2), side("A", rehearsal, with_a_rank_that_is_off, context=2)
    found = told(alone, wrong, right).parting
    assert found is not None and (found.phase, found.name) == ("forward", "blocks.1.mlp")
    assert (found.side, found.rank) == ("A", 1)


def test_bf16_beside_fp32_differs_by_its_rounding_and_by_no_more(alone, rehearsal):
    narrow = side("B", replace(rehearsal, precision=Precision("bf16")))
    assert told(alone, side("A", rehearsal), narrow).parting is not None
    assert told(alone, side("A", rehearsal), narrow, tolerance=5e-2).parting is None
