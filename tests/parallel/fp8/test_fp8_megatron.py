"""Tests that Megatron-Core's layers compute in FP8 with one device's losses and histories, and go on after a resume."""

import importlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.precision import Precision
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.fp8 import operands
from nemo_vfm.parallel.fp8.fp8_linear import Fp8Products
from nemo_vfm.parallel.fp8.use_fp8 import fp8_linears
from nemo_vfm.parallel.megatron.megatron_engine import MegatronEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.parallel.fp8.test_fp8_layouts import doubled
from tests.parallel.test_gpt_layouts import Awake as AwakeGPT
from tests.parallel.test_gpt_layouts import Following
from tests.support.cpu_megatron import MEGATRON, megatron_on_cpu
from tests.support.layouts import Awake, Doubling, own
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.cluster  # several ranks
RANKS_IMPORT = MEGATRON

MODELS: dict[str, tuple[Any, Any]] = {
    "dit": (partial(doubled, Awake, in_channels=4, text_dim=16, width=64, depth=2, heads=4), Doubling()),
    "gpt": (partial(doubled, AwakeGPT, vocab=96, width=256, depth=2, heads=4, mlp_hidden=512), Following(packed=False)),
}
SEQUENCE: dict[str, Any] = {"tensor": 2, "sequence": True}
CASES: dict[int, list[tuple[str, str, dict[str, Any]]]] = {
    1: [("dit", "delayed", {}), ("gpt", "mxfp8", {"microbatches": 2})],
    2: [
        ("dit", "current", {"tensor": 2}), ("dit", "current", SEQUENCE), ("dit", "delayed", SEQUENCE),
        ("dit", "delayed", {"context": 2}), ("gpt", "rowwise", SEQUENCE), ("gpt", "block", {"tensor": 2}),
        ("gpt", "delayed", {"pipeline": 2, "microbatches": 2}), ("gpt", "delayed", {"shard": 2, "microbatches": 2}),
    ],
    4: [
        ("dit", "delayed", {**SEQUENCE, "context": 2}),
        ("gpt", "delayed", {**SEQUENCE, "shard": 2, "microbatches": 2}),
    ],
}  # fmt: skip


def started(engine: Any, plan: ParallelPlan, name: str, recipe: Any) -> Any:
    model, task = MODELS[name]
    optimizer = partial(torch.optim.AdamW, lr=1e-3, eps=1e-5)
    engine = engine.start(
        EngineInputs(model, task, optimizer, Precision("fp32", Fp8(recipe=recipe, history=4)), 3, plan)
    )
    return engine


def in_float64(patch: pytest.MonkeyPatch) -> None:
    """Let everything be in float64: in float32 the order of a sum may flip the last bit of an FP8 number."""
    from nemo_vfm.parallel.megatron import distributed_optimizer, schedule

    type_of, config_of, ddp = torch.Tensor.type, schedule.config_of, distributed_optimizer._ddp
    patch.setattr(torch.Tensor, "type", lambda self, *to, **how: _of_float32(type_of(self, *to, **how)))
    patch.setattr(schedule, "config_of", lambda plan: _of_float64(config_of(plan)))
    patch.setattr(distributed_optimizer, "_ddp", lambda plan: replace(ddp(plan), grad_reduce_in_fp32=False))
    optimizer = importlib.import_module("megatron.core.optimizer.distrib_optimizer").DistributedOptimizer
    copies = optimizer._copy_model_grads_to_main_grads
    patch.setattr(optimizer, "_copy_model_grads_to_main_grads", lambda self: _unrounded(copies, self))
    product = Fp8Products.product  # of layers that are in the place of those that `doubled` has hooked
    patch.setattr(Fp8Products, "product", lambda self, x, *how: product(self, x.double(), *how))


def without_float32(patch: pytest.MonkeyPatch) -> None:
    """Let `Tensor.float` keep float64: a sum over ranks in float32 may flip a bit of FP8, by the processor."""
    narrowed, quantise = torch.Tensor.float, operands.quantise
    patch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else narrowed(x))
    patch.setattr(operands, "quantise", lambda x, *how, **named: quantise(narrowed(x), *how, **named))


def _unrounded(function: Any, *arguments: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", lambda tensor: tensor)
        function(*arguments)


def _of_float32(found: Any) -> Any:
    """The name of a type that Megatron-Core's optimizer takes."""
    return found.replace("Double", "Float") if isinstance(found, str) else found


def _of_float64(config: Any) -> Any:
    config.pipeline_dtype = torch.float64
    return config


def trained(
    kind: type, rank: int, name: str, recipe: str, degrees: dict[str, Any], folder: str = "", first: int = 0
) -> dict[str, Any]:
    """Three steps, after those of the checkpoint `first` in a folder, and a checkpoint after them."""
    plan, usual = ParallelPlan(**degrees), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        engine = started(kind(), plan, name, recipe)
        if first:
            engine.load(checkpoint.open_latest(Path(folder), gather_group()).groups)
        with pytest.MonkeyPatch.context() as patch:
            without_float32(patch)
            losses = [engine.step([own(plan, rank, index)]).loss for index in range(first, first + 3)]
        tensors = engine.tensors()
        if folder:
            checkpoint.save(Path(folder), first + 3, tensors, {}, ranks=gather_group())
    finally:
        torch.set_default_dtype(usual)
    return {"loss": losses, "fp8": {key: tensor.clone() for key, tensor in tensors.get("fp8", {}).items()},
            "linears": [name for name, _ in fp8_linears(engine.model)]}  # fmt: skip


def by_megatron(rank: int, cases: list[Any], fault: bool = False) -> list[dict[str, Any]]:
    with megatron_on_cpu(), pytest.MonkeyPatch.context() as patch:
        in_float64(patch)
        if fault:
            patch.setattr(operands, "all_reduce_amax", lambda amax, group: amax)
        return [trained(MegatronEngine, rank, *case) for case in cases]


def by_torch(rank: int, cases: list[Any]) -> list[dict[str, Any]]:
    return [trained(TorchEngine, rank, *case) for case in cases]


@pytest.fixture(scope="module")
def alone() -> dict[Any, dict[str, Any]]:
    """By model, recipe and micro-batches, on one device."""
    every = {(name, recipe, _batches(degrees)) for cases in CASES.values() for name, recipe, degrees in cases}
    asked = [(name, recipe, {"microbatches": count}) for name, recipe, count in sorted(every)]
    return dict(zip(sorted(every), on_ranks(1, by_torch, asked)[0], strict=True))


def _batches(degrees: dict[str, Any]) -> int:
    return int(degrees.get("microbatches", 1))


@pytest.mark.parametrize("count", CASES, ids=["one rank", "two ranks", "four ranks"])
def test_every_layout_gives_one_devices_losses_and_histories(alone: dict[Any, Any], count: int) -> None:
    histories: dict[Any, dict[str, Tensor]] = {}
    for found in on_ranks(count, by_megatron, CASES[count]):
        for place, ((name, recipe, degrees), one) in enumerate(zip(CASES[count], found, strict=True)):
            expected = alone[name, recipe, _batches(degrees)]
            assert one["loss"] == pytest.approx(expected["loss"], rel=1e-6), (name, recipe, degrees)
            histories[place] = histories.get(place, {}) | one["fp8"]
            assert one["linears"], "nothing is in FP8"
    for place, (name, recipe, degrees) in enumerate(CASES[count]):
        expected = alone[name, recipe, _batches(degrees)]["fp8"]
        assert histories[place].keys() == expected.keys()
        for key, tensor in histories[place].items():
            torch.testing.assert_close(tensor, expected[key], rtol=1e-6, atol=0, msg=str((name, degrees, key)))


def test_ranks_that_do_not_agree_on_an_amax_are_seen(alone: dict[Any, Any]) -> None:
    case = ("dit", "current", {"tensor": 2})
    for (found,) in on_ranks(2, by_megatron, [case], True):
        assert found["loss"] != pytest.approx(alone["dit", "current", 1]["loss"], rel=1e-6)


def test_a_checkpoint_goes_on_in_the_other_engine_with_its_histories(tmp_path: Path) -> None:
    folder, degrees = str(tmp_path), {**SEQUENCE, "microbatches": 2}
    (whole,), (later,) = (
        on_ranks(1, by_torch, [("gpt", "delayed", {"microbatches": 2}, str(tmp_path / "whole"))])[0],
        on_ranks(1, by_torch, [("gpt", "delayed", {"microbatches": 2}, str(tmp_path / "whole"), 3)])[0],
    )
    (first,) = on_ranks(2, by_megatron, [("gpt", "delayed", degrees, folder)])[0]
    (second,) = on_ranks(1, by_torch, [("gpt", "delayed", {"microbatches": 2}, folder, 3)])[0]
    assert first["loss"] + second["loss"] == pytest.approx(whole["loss"] + later["loss"], rel=1e-6)
