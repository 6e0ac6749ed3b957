"""Compares the memory model of a step with the allocations of real steps, on one device, among ranks and on a GPU.

Layouts run in one process under torch's fake group, whose messages arrive at once: gloo's threads release buffers at
any time, and the profiler does not see that.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from nemo_vfm.core.device import device
from nemo_vfm.core.precision import Precision
from nemo_vfm.models.adapters.low_rank_adapter import AdaptedModel, AdapterTarget, LowRankAdapter
from nemo_vfm.models.blocks.text.experts import Experts
from nemo_vfm.models.blocks.text.sliding_window import SlidingWindow
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.models.wan import Wan
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import portions
from nemo_vfm.perf.gpu_specs import GPUS, GpuSpec, gpu_named
from nemo_vfm.perf.memory import ModelFacts, facts, memory
from tests.support.measured_step import Measured, measured_step
from tests.support.ranks import on_ranks

VIDEO = {"latents_BCTHW": (1, 16, 4, 16, 16), "text_BLD": (1, 20, 64)}
dit = partial(DiT, in_channels=16, text_dim=64, width=96, depth=3, heads=4)
st_dit = partial(STDiT, in_channels=16, text_dim=64, width=96, depth=3, heads=4, modulation_rank=16)
gpt = partial(GPT, vocab=2000, width=128, depth=3, heads=4, groups=2, mlp_hidden=256)
TARGETS = {kind: AdapterTarget(modules=f"blocks.*.{kind}.*", rank=8, alpha=16.0) for kind in ("self_attention", "mlp")}
WORDS = {kind: AdapterTarget(modules=f"blocks.*.{kind}.*", rank=8, alpha=16.0) for kind in ("attention", "mlp")}
wan_lora = AdaptedModel(
    partial(Wan, in_channels=16, text_dim=64, width=96, depth=3, heads=4, mlp_hidden=384),
    LowRankAdapter(targets=TARGETS),
)
gpt_dora = AdaptedModel(partial(gpt, groups=4), LowRankAdapter(targets=WORDS, method="dora"))
gpt_mlp_dora = AdaptedModel(gpt, LowRankAdapter(targets={"mlp": WORDS["mlp"]}, method="dora"))
MODELS: dict[str, tuple[Any, dict[str, tuple[int, ...]]]] = {
    "dit": (dit, VIDEO), "st_dit": (st_dit, VIDEO), "gpt": (gpt, {"tokens_BS": (1, 512)}),
    "wan lora": (wan_lora, VIDEO), "gpt dora": (gpt_dora, {"tokens_BS": (1, 512)}),
}  # fmt: skip
#: Besides those that every layout is tried with.
KNOWN = MODELS | {
    "gpt mlp dora": (gpt_mlp_dora, {"tokens_BS": (1, 512)}),
    "gpt many words": (partial(gpt, vocab=60_000), {"tokens_BS": (1, 512), "loss_weight_B": (1,)}),
    "gpt many words, no weights": (partial(gpt, vocab=60_000), {"tokens_BS": (1, 512)}),
    "gpt window": (partial(gpt, window=SlidingWindow(100)), {"tokens_BS": (1, 512)}),
    "gpt experts": (partial(gpt, experts=Experts(8, per_token=2, hidden=64, balance=0.1)), {"tokens_BS": (1, 512)}),
}
ROWS = 2
CLOSE = 0.1


@cache
def known(name: str) -> ModelFacts:
    build, shapes = KNOWN[name]
    with torch.device("meta"):
        return facts(build(), shapes)


def said(name: str, degrees: dict[str, Any], *, gpu: bool = False, **how: Any) -> int:
    return memory(known(name), ParallelPlan(**degrees), microbatch_rows=ROWS, gpu=gpu, **how).total


def measured(
    rank: int, name: str, degrees: dict[str, Any], recompute: str = "none", precision: Any = "fp32"
) -> Measured:
    build, shapes = KNOWN[name]
    plan = ParallelPlan(**degrees)
    how = {"recompute": recompute}
    rows = ROWS * plan.microbatches
    return measured_step(rank, build, shapes, plan, rows=rows, precision=Precision(precision), how=how)


@contextmanager
def fake_group(world: int) -> Iterator[None]:
    """As the first of so many ranks, of which the others do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("name", "recompute"), [
    ("gpt", "none"), ("gpt many words", "none"), ("gpt many words, no weights", "none"), ("dit", "blocks"),
    ("gpt window", "none"), ("gpt experts", "none"), ("gpt experts", "blocks"),
])  # fmt: skip
def test_a_step_on_one_device_needs_what_the_model_says(name: str, recompute: Any):
    found = measured(0, name, {}, recompute)
    assert said(name, {}, precision="fp32", recompute=recompute) == pytest.approx(found.most, rel=0.02)


FROZEN: list[Any] = [
    ("gpt dora", {"tensor": 2, "sequence": True}, "none"),
    ("wan lora", {}, "none"),
    ("wan lora", {}, "blocks"),
    ("gpt mlp dora", {}, "blocks"),
]


@pytest.mark.parametrize(("name", "degrees", "recompute"), FROZEN)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.slow
def test_frozen_weights_and_adapters_need_what_the_model_says(
    name: str, degrees: dict[str, Any], recompute: Any, precision: Any
):
    plan = ParallelPlan(**degrees)
    with fake_group(plan.world) if degrees else nullcontext():
        found = measured(0, name, degrees, recompute, precision)
    needed = memory(known(name), plan, microbatch_rows=ROWS, precision=precision, gpu=False, recompute=recompute)
    assert needed.total == pytest.approx(found.most, rel=0.02)
    standing = needed.parameters + needed.gradients + needed.optimizer
    assert found.standing == pytest.approx(standing, abs=4 * 100)  # but for a step's number for each parameter
    assert needed.gradients < 0.2 * needed.parameters


@pytest.mark.parametrize(
    ("name", "degrees", "recompute"),
    [
        ("gpt", {"tensor": 2, "sequence": True}, "none"), ("gpt", {"tensor": 4}, "none"),
        ("gpt", {"shard": 2}, "blocks"), ("gpt many words", {"tensor": 2, "sequence": True}, "none"),
    ],
    ids=str,
)  # fmt: skip
def test_a_layout_needs_what_the_model_says(name: str, degrees: dict[str, Any], recompute: Any):
    """With four tensor ranks, two of them share each head of keys and values."""
    with fake_group(ParallelPlan(**degrees).world):
        found = measured(0, name, degrees, recompute)
    plan, how = ParallelPlan(**degrees), {"precision": "fp32", "recompute": recompute, "gpu": False}
    needed = memory(known(name), plan, microbatch_rows=ROWS, **how)
    assert needed.total == pytest.approx(found.most, rel=0.02)
    standing = needed.parameters + needed.gradients + needed.optimizer
    assert found.standing == pytest.approx(standing, abs=4 * 40)  # but for a step's number for each parameter


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recompute", ["none", "blocks"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_of_every_kind_needs_what_the_model_says(name: str, recompute: Any, precision: Any):
    found = measured(0, name, {}, recompute, precision)
    assert said(name, {}, precision=precision, recompute=recompute) == pytest.approx(found.most, rel=CLOSE)


@pytest.mark.cluster  # several ranks
@pytest.mark.soak
@pytest.mark.parametrize("degrees", [{"tensor": 2}, {"shard": 2}], ids=str)
def test_real_ranks_need_what_the_model_says(degrees: dict[str, Any]):
    """The least of them: what another thread gives back is not seen, so that some seem to need more."""
    found = min(one.most for one in on_ranks(2, measured, "gpt", degrees))
    assert said("gpt", degrees, precision="fp32") == pytest.approx(found, rel=CLOSE)


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recompute", ["none", "blocks"])
@pytest.mark.parametrize("degrees", [
    {"tensor": 4}, {"tensor": 2, "sequence": True}, {"shard": 2}, {"shard": 8, "microbatches": 2},
    {"tensor": 2, "shard": 2}, {"tensor": 2, "sequence": True, "shard": 2},
], ids=json.dumps)  # fmt: skip
def test_every_layout_needs_what_the_model_says(name: str, recompute: Any, degrees: dict[str, Any]):
    with fake_group(ParallelPlan(**degrees).world):
        found = measured(0, name, degrees, recompute)
    assert said(name, degrees, precision="fp32", recompute=recompute) == pytest.approx(found.most, rel=CLOSE)


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("degrees", [
    {"pipeline": 2, "microbatches": 2}, {"pipeline": 2, "microbatches": 4},
], ids=json.dumps)  # fmt: skip
def test_every_pipeline_needs_what_the_model_says(name: str, degrees: dict[str, Any]):
    found = max(one.most for one in on_ranks(2, measured, name, degrees))
    assert said(name, degrees, precision="fp32") == pytest.approx(found, rel=CLOSE)


#: Bytes of this file's steps on one H200: torch 2.11.0 for CUDA 13.0, 2026-11-27. Of `gpt` with recomputation 142.9 MB
#: are taken off, which a test that had failed before still held (docs/measurements/2026-11-27-h200.md).
ON_AN_H200 = {
    ("dit", "none"): 93_385_216, ("st_dit", "none"): 106_575_360, ("gpt", "none"): 108_607_488,
    ("wan lora", "none"): 80_559_104, ("gpt dora", "none"): 104_249_344,
    ("dit", "blocks"): 86_050_816, ("st_dit", "blocks"): 91_035_136, ("gpt", "blocks"): 234_307_072 - 142_881_024,
    ("wan lora", "blocks"): 75_728_896, ("gpt dora", "blocks"): 82_854_912,
}  # fmt: skip


def of_a_step_on_a_gpu(name: str, recompute: Any, gpu: GpuSpec, most: int) -> None:
    """Compares with what is planned, to 3 MiB: cuBLASLt's own workspaces of two threads, and rounded allocations."""
    own = said(name, {}, gpu=True, precision="bf16", recompute=recompute)
    assert own == pytest.approx(most - gpu.workspaces, abs=3 * 2**20)


@pytest.mark.parametrize(("name", "recompute"), ON_AN_H200)
def test_a_step_on_a_gpu_needs_what_the_model_says_and_the_workspaces_of_cublas(name: str, recompute: Any):
    of_a_step_on_a_gpu(name, recompute, gpu_named("h200"), ON_AN_H200[name, recompute])


@pytest.mark.skipif(device().type != "cuda", reason="no GPU")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recompute", ["none", "blocks"])
def test_a_step_on_a_gpu_needs_what_the_model_says(name: str, recompute: Any):
    found = measured(0, name, {}, recompute, "bf16")
    here = next(gpu for gpu in GPUS if gpu.words in torch.cuda.get_device_name())
    of_a_step_on_a_gpu(name, recompute, here, found.most)


@pytest.mark.parametrize("degrees", [
    {}, {"tensor": 2}, {"shard": 16}, {"pipeline": 3, "microbatches": 3}, {"tensor": 2, "shard": 4, "context": 2},
], ids=str)  # fmt: skip
def test_weights_are_those_that_the_engine_would_keep(degrees: dict[str, Any]):
    plan = ParallelPlan(**degrees)
    with torch.device("meta"):
        kept = [4 * sum(own.values()) for own in portions(gpt(), plan)]
    needed = memory(known("gpt"), plan, microbatch_rows=ROWS)
    assert needed.parameters == needed.gradients and needed.parameters in kept
    assert needed.total == needed.parameters + needed.gradients + needed.optimizer + needed.activations


def test_what_saves_memory_saves_it():
    plain = memory(known("gpt"), ParallelPlan(), microbatch_rows=8)
    again = memory(known("gpt"), ParallelPlan(), microbatch_rows=8, recompute="blocks")
    assert again.activations < plain.activations and again.parameters == plain.parameters
    away = memory(known("gpt"), ParallelPlan(), microbatch_rows=8, offload_optimizer=True)
    assert away.optimizer == 0 and away.total == plain.total - plain.optimizer and away.host > plain.optimizer
    averaged = memory(known("gpt"), ParallelPlan(), microbatch_rows=8, average=True)
    assert averaged.total == plain.total + plain.parameters


def test_an_optimizer_of_one_kernel_takes_no_copy_while_it_updates():
    needed = []
    for fused in (False, True):
        with torch.device("meta"):
            few = facts(gpt(), {"tokens_BS": (1, 16)}, partial(torch.optim.AdamW, lr=1e-4, fused=fused))
        needed.append(memory(few, ParallelPlan(), recompute="blocks"))
    assert needed[0].moment == "the optimizer's update" and needed[1].total < needed[0].total


def test_a_model_that_does_not_say_how_it_is_cut_is_refused():
    with pytest.raises(ValueError, match="Linear lacks plan"):
        facts(nn.Linear(2, 2), {"tokens_BS": (1, 4)})
    with pytest.raises(ValueError, match="tokens_BS"):
        facts(gpt(), {"video": (1, 4)})
