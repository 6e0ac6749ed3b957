"""Tests that a training in FP8 has one device's scales and losses on every layout, and goes on so after a resume."""

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group
from nemo_vfm.parallel.engine import history_updater
from nemo_vfm.parallel.engine.step_runner import EngineInputs, StepRunner
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.fp8 import operands
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.parallel.test_gpt_layouts import Awake as AwakeGPT
from tests.parallel.test_gpt_layouts import Following
from tests.support.combinations import cases
from tests.support.layouts import Awake, Doubling, own
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.cluster  # several ranks


def doubled(kind: Any, **sizes: Any) -> Any:
    """A model whose sums do not depend on their order: in float32 they do, and a last bit may flip one of FP8."""
    model = kind(**sizes)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    return model


DIT = (partial(doubled, Awake, in_channels=4, text_dim=16, width=64, depth=2, heads=4), Doubling())
GPT = (partial(doubled, AwakeGPT, vocab=96, width=256, depth=2, heads=4, mlp_hidden=512), Following(packed=False))


def started(plan: ParallelPlan, spec: Fp8, model: Factory, task: Any, **how: Any) -> StepRunner:
    engine = TorchEngine(**how)
    optimizer = partial(torch.optim.AdamW, lr=1e-3)
    return engine.start(EngineInputs(model, task, optimizer, Precision("fp32", spec), 3, plan))


def steps(rank: int, degrees: dict[str, Any], spec: Fp8, parts: Any, count: int = 3, **how: Any) -> dict[str, Any]:
    plan, scales = ParallelPlan(**degrees), []
    kept, usual = operands.quantise, torch.get_default_dtype()

    def noted(*arguments: Any, **named: Any) -> Any:
        found = kept(*arguments, **named)
        scales.append(found.scale.float().flatten())
        return found

    operands.quantise = noted
    torch.set_default_dtype(torch.float64)
    try:
        engine = started(plan, spec, *parts, **how)
        losses = [engine.step([own(plan, rank, index)]).loss for index in range(count)]
    finally:
        operands.quantise = kept
        torch.set_default_dtype(usual)
    return {"loss": losses, "scales": scales, "fp8": {n: t.clone() for n, t in engine.tensors().get("fp8", {}).items()}}


RECIPES = [(DIT, "current"), (DIT, "rowwise"), (DIT, "delayed"), (GPT, "mxfp8"), (GPT, "block"), (GPT, "delayed")]
IDS = ["dit-current", "dit-rowwise", "dit-delayed", "gpt-mxfp8", "gpt-block", "gpt-delayed"]
#: Of scales in float32, in which attention over context ranks and a language model's loss are summed: 2 units at most.
ULP = 3e-7


def spec_of(recipe: Any) -> Fp8:
    return Fp8(recipe=recipe, history=4)


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """By model, recipe and micro-batches."""
    return {}


def one_device(alone: dict[str, Any], place: int, microbatches: int = 1) -> dict[str, Any]:
    key = f"{place}-{microbatches}"
    if key not in alone:
        parts, recipe = RECIPES[place]
        alone[key] = on_ranks(1, steps, {"microbatches": microbatches}, spec_of(recipe), parts)[0]
    return alone[key]


def apart(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """How far scales are from one device's, at most: those of a part of the rows are among those of all."""
    worst = [nearest(*pair) for pair in zip(found["scales"], expected["scales"], strict=True)]
    return max([0.0, *worst, *(relative(tensor, expected["fp8"][name]) for name, tensor in found["fp8"].items())])


def nearest(some: torch.Tensor, every: torch.Tensor) -> float:
    """The largest distance from one to the nearest of the others; a row that is zero but for noise has any scale."""
    some, every = some[some > 1e-12 * every.max()], every.sort().values
    after = torch.searchsorted(every, some).clamp(1, max(1, len(every) - 1))
    beside = every[torch.stack([after - 1, after.clamp(max=len(every) - 1)])]
    return float((some / beside - 1).abs().amin(0).max())


def relative(tensor: torch.Tensor, other: torch.Tensor) -> float:
    return float(((tensor - other).abs() / other.abs().clamp(min=1e-30)).max())


TENSOR, SEQUENCE, CONTEXT = {"tensor": 2}, {"tensor": 2, "sequence": True}, {"context": 2}


@pytest.mark.parametrize(("place", "degrees"), cases(
    itertools.product(range(len(RECIPES)), [TENSOR, SEQUENCE, CONTEXT]),
    [(0, TENSOR), (1, SEQUENCE), (2, CONTEXT), (3, CONTEXT), (4, SEQUENCE), (5, SEQUENCE)],
), ids=lambda value: IDS[value] if isinstance(value, int) else str(value))  # fmt: skip
def test_scales_and_losses_are_those_of_one_device(alone: dict[str, Any], place: int, degrees: dict[str, Any]):
    parts, recipe = RECIPES[place]
    if recipe == "block" and "context" in degrees:
        pytest.skip("a block is 128 tokens of one rank, so other tokens share a scale (docs/how-to/training/fp8.md)")
    expected = one_device(alone, place)
    for found in on_ranks(2, steps, degrees, spec_of(recipe), parts):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-7)
        assert apart(found, expected) <= ULP


SEVERAL = [
    (2, {"shard": 2}, 2), (2, {"pipeline": 2, "microbatches": 2}, 2), (4, SEQUENCE | {"shard": 2}, 2),
    (4, TENSOR | CONTEXT, 1), (4, {"pipeline": 2, "microbatches": 2, "tensor": 2}, 2),
]  # fmt: skip


@pytest.mark.parametrize(("place", "count", "degrees", "microbatches"), cases(
    [(place, *layout) for place in (0, 2, 5) for layout in SEVERAL],
    [(0, *SEVERAL[0]), (2, *SEVERAL[2]), (5, *SEVERAL[4])],
), ids=str)  # fmt: skip
def test_scales_follow_the_micro_batch_and_histories_all_of_them(
    alone: dict[str, Any], place: int, count: int, degrees: dict[str, Any], microbatches: int
):
    """With current scaling each rank's samples are quantised by themselves, as one device does with micro-batches."""
    parts, recipe = RECIPES[place]
    expected = one_device(alone, place, microbatches)
    histories: dict[str, Any] = {}
    for found in on_ranks(count, steps, degrees, spec_of(recipe), parts):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-7)
        assert apart(found | {"scales": []}, expected | {"scales": []}) <= ULP
        histories |= found["fp8"]
    assert histories.keys() == expected["fp8"].keys()


def test_recomputation_and_a_schedule_that_defers_weight_gradients_change_nothing():
    model, task = DIT
    deep = (partial(model, depth=4), task)
    spec = spec_of("delayed")
    expected = on_ranks(1, steps, {"microbatches": 4}, spec, deep)[0]
    zero_bubble = {"pipeline": 2, "virtual": 2, "microbatches": 4, "schedule": "zero_bubble"}
    ways = [(1, partial(steps, recompute="blocks"), {"microbatches": 4}), (2, steps, zero_bubble)]
    for count, function, degrees in ways:
        for found in on_ranks(count, function, degrees, spec, deep):
            assert found["loss"] == pytest.approx(expected["loss"], rel=1e-7)
            assert apart(found, expected | {"scales": []}) <= ULP


def of_data_ranks_alone(rank: int, degrees: dict[str, Any], recipe: str, parts: Any) -> dict[str, Any]:
    """The fault of others: ranks that split a tensor do not agree on its amax."""
    with pytest.MonkeyPatch.context() as changed:
        for module in (operands, history_updater):
            changed.setattr(module, "all_reduce_amax", lambda amax, group: amax)
        return steps(rank, degrees, spec_of(recipe), parts)


@pytest.mark.parametrize("place", [0, 2], ids=[IDS[0], IDS[2]])
def test_an_amax_that_only_data_ranks_share_is_seen(alone: dict[str, Any], place: int):
    parts, recipe = RECIPES[place]
    expected = one_device(alone, place)
    found = on_ranks(2, of_data_ranks_alone, {"tensor": 2}, recipe, parts)
    assert max(apart(one, expected) for one in found) > 0.01


def resumed(rank: int, degrees: dict[str, Any], folder: str, first: int, count: int) -> dict[str, Any]:
    """Some steps from the checkpoint of step `first`, and a checkpoint after them."""
    plan, spec, usual = ParallelPlan(**degrees), spec_of("delayed"), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        engine = started(plan, spec, *DIT)
        if first:
            engine.load(checkpoint.open_latest(Path(folder), gather_group()).groups)
        losses = [engine.step([own(plan, rank, index)]).loss for index in range(first, first + count)]
        checkpoint.save(Path(folder), first + count, engine.tensors(), {}, ranks=gather_group())
        return {"loss": losses, "fp8": {n: t.clone() for n, t in engine.tensors()["fp8"].items()}, "scales": []}
    finally:
        torch.set_default_dtype(usual)


def test_histories_survive_a_resume_on_fewer_and_on_more_ranks(tmp_path: Path):
    expected = on_ranks(1, resumed, {"microbatches": 2}, str(tmp_path / "whole"), 0, 9)[0]
    folder, losses = str(tmp_path / "parts"), []
    for first, (count, degrees) in zip((0, 3, 6), (
        (2, {"tensor": 2, "microbatches": 2}), (1, {"microbatches": 2}), (4, {"tensor": 2, "shard": 2}),
    ), strict=True):  # fmt: skip
        found = on_ranks(count, resumed, degrees, folder, first, 3)
        losses += found[0]["loss"]
    assert losses == pytest.approx(expected["loss"], rel=1e-7)
    assert apart(found[0], expected | {"scales": []}) <= ULP


@pytest.mark.parametrize("degrees", cases([SEQUENCE, {"shard": 2}], [{"shard": 2}]), ids=str)
def test_a_resume_in_the_same_layout_goes_on_bit_by_bit(tmp_path: Path, degrees: dict[str, Any]):
    whole = on_ranks(2, resumed, degrees, str(tmp_path / "whole"), 0, 6)[0]
    first = on_ranks(2, resumed, degrees, str(tmp_path / "parts"), 0, 3)[0]
    second = on_ranks(2, resumed, degrees, str(tmp_path / "parts"), 3, 3)[0]
    assert first["loss"] + second["loss"] == whole["loss"]
    assert all(torch.equal(tensor, whole["fp8"][name]) for name, tensor in second["fp8"].items())


def test_a_resume_without_its_histories_says_so(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(history_updater.log, "warn", said.append)
    model = partial(Awake, in_channels=4, text_dim=16, width=64, depth=1, heads=4)
    engine = started(ParallelPlan(), spec_of("delayed"), model, Doubling())
    groups = engine.tensors()
    engine.load(groups)
    assert not said
    engine.load({name: group for name, group in groups.items() if name != "fp8"})
    assert len(said) == 1 and "no amax histories for these linears" in said[0]
