"""Tests that every pipeline schedule, with every other axis, gives one device's losses and gradients."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.parallel.apply.local_shard import local
from nemo_vfm.parallel.apply.pipeline_stage import cut, stages_of
from nemo_vfm.parallel.engine import weight_updater
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan, shares
from tests.parallel.test_resume import part
from tests.support.layouts import SAMPLES, Awake, Doubling, batch, own, started, tiny, whole
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.cluster  # several ranks

INTERLEAVED: dict[str, Any] = {"pipeline": 2, "virtual": 2, "microbatches": 2}
ZERO_BUBBLE: dict[str, Any] = {**INTERLEAVED, "schedule": "zero_bubble"}
PIPELINE: dict[str, Any] = {"pipeline": 2, "microbatches": 2}
SEQUENCE: dict[str, Any] = {"tensor": 2, "sequence": True}

LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (2, {**INTERLEAVED, "microbatches": 4}),
    (2, {**ZERO_BUBBLE, "microbatches": 4}),
    (4, PIPELINE | {"context": 2}),
    (4, INTERLEAVED | {"shard": 2}),
    (4, ZERO_BUBBLE | SEQUENCE),
]
MORE: list[tuple[int, dict[str, Any]]] = [
    (2, PIPELINE),
    (2, {**PIPELINE, "microbatches": 4}),
    (4, {"pipeline": 4, "microbatches": 4}),
    (4, PIPELINE | SEQUENCE),
    (4, PIPELINE | {"shard": 2}),
    (4, PIPELINE | {"replicate": 2}),
    (4, INTERLEAVED | SEQUENCE),
    (4, INTERLEAVED | {"context": 2}),
    (4, ZERO_BUBBLE | {"shard": 2}),
    (4, ZERO_BUBBLE | {"context": 2}),
]


class Growing(Doubling):
    """Odd batches have longer videos."""

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        found = super().prepare(batch, seed=seed, training=training)
        if batch.index % 2:
            for tensors, name in ((found.inputs, "latents_BCTHW"), (found.targets, "x")):
                tensors[name] = torch.cat([tensors[name], 0.5 * tensors[name]], 2)
        return found


def steps(rank: int, degrees: dict[str, Any], how: dict[str, Any] | None = None) -> dict[str, Any]:
    """Two steps of two batches each, the first one's gradients, a validation, and what a caller of the model gets."""
    plan = ParallelPlan(**degrees)
    engine = started(plan, **(how or {}))
    results = [engine.step([own(plan, rank, index), own(plan, rank, index + 2)]) for index in range(2)]
    found = {name: whole(parameter.grad).clone() for name, parameter in engine.model.named_parameters()}
    held = sum(local(parameter).numel() for parameter in engine.model.parameters())
    losses, prepared = engine.evaluate(batch(99, 0, SAMPLES - 1))
    after = sum(local(parameter).numel() for parameter in engine.model.parameters())
    return {
        "loss": [result.loss for result in results], "norm": [result.grad_norm for result in results],
        "samples": [result.num_samples for result in results], "validation": losses.tolist(),
        "output": engine.model(**prepared.inputs).detach(), "gradients": found, "held": held, "after": after,
    }  # fmt: skip


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return on_ranks(1, steps, {})[0]


def differences(found: list[dict[str, Any]], alone: dict[str, Any]) -> dict[str, float]:
    """The largest relative ones, over all ranks; a gradient's is of its norm."""
    numbers = {
        name: max(abs(a / b - 1) for one in found for a, b in zip(one[name], alone[name], strict=True))
        for name in ("loss", "norm", "validation")
    }
    per_name = [apart(one["gradients"][name], alone["gradients"][name]) for one in found for name in one["gradients"]]
    return numbers | {
        "gradients": max(per_name), "output": max(apart(one["output"], alone["output"]) for one in found)
    }  # fmt: skip


def apart(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def require_alike(found: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    names = [set(one["gradients"]) for one in found]
    assert set().union(*names) == set(alone["gradients"]), "the stages have all parameters between them"
    assert all(one["samples"] == alone["samples"] == [2 * SAMPLES] * 2 for one in found)
    assert all(one["held"] == one["after"] for one in found), "weights gathered for a validation were given back"
    limits = {"loss": 2e-6, "norm": 1e-5, "validation": 1e-5, "gradients": 1e-4, "output": 1e-4}
    seen = differences(found, alone)
    assert all(seen[name] < limit for name, limit in limits.items()), seen


@pytest.mark.parametrize(("count", "degrees"), LAYOUTS, ids=lambda value: str(value))
def test_a_pipeline_gives_one_devices_numbers(alone: dict[str, Any], count: int, degrees: dict[str, Any]) -> None:
    require_alike(on_ranks(count, steps, degrees), alone)


@pytest.mark.soak
@pytest.mark.parametrize(("count", "degrees"), MORE, ids=lambda value: str(value))
def test_more_pipelines_give_one_devices_numbers(alone: dict[str, Any], count: int, degrees: dict[str, Any]) -> None:
    require_alike(on_ranks(count, steps, degrees), alone)


@pytest.mark.parametrize("degrees", [PIPELINE, ZERO_BUBBLE], ids=str)
def test_recomputing_blocks_changes_no_number(alone: dict[str, Any], degrees: dict[str, Any]) -> None:
    require_alike(on_ranks(2, steps, degrees, {"recompute": "blocks"}), alone)


def without(rank: int) -> dict[str, Any]:
    """A step with the sum over stages left out on purpose."""
    with patch.object(weight_updater, "sum_partial", lambda holding, mesh: None):
        return once(rank, PIPELINE)


def once(rank: int, degrees: dict[str, Any], task: Any = Doubling, count: int = 1, compute: Any = "fp32") -> Any:
    """The loss of a few steps, and the last one's gradients before clipping."""
    plan, engine = ParallelPlan(**degrees), TorchEngine(clip_norm=None)
    optimizer = partial(torch.optim.AdamW, lr=1e-3)
    engine = engine.start(EngineInputs(tiny, task(), optimizer, Precision(compute), 3, plan))
    results = [engine.step([own(plan, rank, index)]) for index in range(count)]
    found = {name: whole(parameter.grad).clone() for name, parameter in engine.model.named_parameters()}
    return {"loss": [result.loss for result in results], "gradients": found}


def test_a_sum_over_stages_that_is_left_out_is_seen_in_what_every_stage_has_and_nowhere_else() -> None:
    expected = on_ranks(1, once, {})[0]
    for found in on_ranks(2, without):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        wrong = {name for name, grad in found["gradients"].items() if apart(grad, expected["gradients"][name]) > 0.01}
        assert wrong == {name for name in found["gradients"] if name.startswith(("noise_embedding", "text_embedding"))}
        assert wrong


@pytest.mark.parametrize("degrees", [PIPELINE, INTERLEAVED | {"shard": 2}], ids=str)
def test_the_shape_of_videos_may_change_between_steps(degrees: dict[str, Any]) -> None:
    expected = on_ranks(1, once, {}, Growing, 4)[0]
    for found in on_ranks(ParallelPlan(**degrees).world, once, degrees, Growing, 4):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.parametrize("degrees", [PIPELINE, INTERLEAVED | {"shard": 2}, ZERO_BUBBLE], ids=str)
def test_bf16_travels_between_stages_as_it_is(degrees: dict[str, Any]) -> None:
    expected = on_ranks(1, once, {"microbatches": 2}, Doubling, 1, "bf16")[0]
    for found in on_ranks(ParallelPlan(**degrees).world, once, degrees, Doubling, 1, "bf16"):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
        for name, grad in found["gradients"].items():
            assert apart(grad, expected["gradients"][name]) < 0.05, name


ROAD: list[tuple[int, dict[str, Any]]] = [(2, PIPELINE), (1, {}), (4, {**INTERLEAVED, "shard": 2})]


def test_a_training_goes_on_from_a_pipelines_checkpoint_in_any_layout_and_back(tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []
    for number, (count, degrees) in enumerate(ROAD):
        seen += on_ranks(count, part, degrees, tmp_path / "road", 3 * number, 3 * number + 3)[0]
    expected = on_ranks(1, part, {}, tmp_path / "whole", 0, 9)[0]
    for found, wanted in zip(seen, expected, strict=True):
        assert found == pytest.approx(wanted, rel=1e-5)


def test_blocks_left_over_go_to_the_middle_first() -> None:
    assert [len(share) for share in shares(10, 4)] == [2, 3, 3, 2]
    assert [len(share) for share in shares(5, 4)] == [1, 2, 1, 1]
    assert [len(share) for share in shares(7, 4)] == [2, 2, 2, 1]
    assert [block for share in shares(29, 8) for block in share] == list(range(29))


@pytest.mark.parametrize("degrees", [{"pipeline": 4, "microbatches": 4}, INTERLEAVED], ids=str)
def test_ranks_hold_each_parameter_once_but_what_every_stage_has_under_its_name_on_one_device(
    degrees: dict[str, Any],
) -> None:
    plan, everything = ParallelPlan(**degrees), dict(tiny().named_parameters())
    seen: list[str] = []
    for rank in range(plan.world):
        model = tiny()
        stages = stages_of(model, cut(model, plan, plan.coordinate(rank)), plan, plan.coordinate(rank))
        names = {name: parameter.shape for name, parameter in model.named_parameters()}
        assert names == {name: everything[name].shape for name in names}
        assert {id(p) for stage in stages for p in stage.parameters()} == {id(p) for p in model.parameters()}
        seen += names
    often = {name for name in seen if seen.count(name) > 1}
    assert set(seen) == set(everything)
    assert often == {name for name in everything if name.startswith(("noise_embedding", "text_embedding"))}


def test_a_stage_can_be_asked_for_what_the_whole_model_costs() -> None:
    shapes = {"latents_BCTHW": (1, 4, 2, 4, 8), "text_BLD": (1, 5, 16)}
    for rank in range(2):
        model, plan = tiny(), ParallelPlan(**PIPELINE)
        cut(model, plan, plan.coordinate(rank))
        assert model.ops(shapes) == tiny().ops(shapes)


class Loose(Awake):
    """Has a parameter that nobody knows of."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scale = nn.Parameter(torch.ones(1))


class Plain(nn.Module):
    """Says nothing of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(2, 2)])

    def plan(self) -> Any:
        return tiny().plan()


loose = partial(Loose, in_channels=4, text_dim=16, width=48, depth=4, heads=4)


@pytest.mark.parametrize(("model", "words"), [
    (loose, "Loose does not define which pipeline stage needs scale"),
    (Plain, r"Plain cannot be cut into pipeline stages \(it has no context, embed, run_blocks, output\)"),
])  # fmt: skip
def test_a_model_that_cannot_be_cut_says_why(model: Callable[[], nn.Module], words: str) -> None:
    plan = ParallelPlan(**PIPELINE)
    with pytest.raises(UserError, match=words):
        cut(model(), plan, plan.coordinate(0))


def refused(rank: int, degrees: dict[str, Any], depth: int, last: int, how: dict[str, Any]) -> str:
    try:
        engine = started(ParallelPlan(**degrees), partial(tiny, depth=depth), **how)
        engine.step([batch(0, 0, last)])
    except (UserError, ValueError) as error:
        return str(error)
    return "nothing was refused"


@pytest.mark.parametrize(("degrees", "depth", "last", "how", "words"), [
    ({**PIPELINE, "microbatches": 3}, 4, 8, {}, "8 samples of each data rank cannot be divided by"),
    (PIPELINE, 1, 8, {}, "1 blocks cannot be cut into 2 stages"),
    (ZERO_BUBBLE, 4, 8, {"compile": True}, "use parallel.schedule: interleaved"),
], ids=str)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_numbers(
    degrees: dict[str, Any], depth: int, last: int, how: dict[str, Any], words: str
) -> None:
    for said in on_ranks(2, refused, degrees, depth, last, how):
        assert words in said


def test_microbatches_that_do_not_divide_into_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"microbatches = 5 do not divide into 2 equal rounds .* 4 would"):
        ParallelPlan(pipeline=2, virtual=2, microbatches=5)
