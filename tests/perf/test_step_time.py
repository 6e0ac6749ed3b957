"""Tests that step times of published rows are within a tenth, and what changes each part of a step."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from nemo_vfm.config import ingredient
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf.flops import TRAINING_FACTOR
from nemo_vfm.perf.gpu_specs import gpu_named
from nemo_vfm.perf.model_work import ModelWork, work_of
from nemo_vfm.perf.network import Network
from nemo_vfm.perf.step_time import Clock, Machine

NEMOTRON = {"vocab": 256_000, "width": 18432, "depth": 96, "heads": 96, "groups": 8, "mlp_hidden": 73728,
            "activation": "squared_relu", "norm": "layernorm1p"}  # fmt: skip
#: Model, latents or tokens, layout, published utilisation (docs/how-to/training/planning.md says where each is from).
PUBLISHED = [
    ((4096, 28, 32), (32, 32, 32), {"tensor": 2, "shard": 128}, 0.525),
    ((4096, 28, 32), (32, 128, 64), {"tensor": 2, "context": 4, "shard": 32}, 0.444),
    ((6144, 48, 48), (32, 32, 32), {"tensor": 4, "pipeline": 4, "microbatches": 64, "shard": 16}, 0.473),
    (None, 4096, {"tensor": 8, "pipeline": 12, "virtual": 8, "microbatches": 48, "shard": 16}, 0.423),
    (None, 4096, {"tensor": 8, "pipeline": 12, "virtual": 8, "microbatches": 48, "shard": 32}, 0.423),
    (None, 4096, {"tensor": 8, "pipeline": 12, "virtual": 8, "microbatches": 36, "shard": 64}, 0.409),
    (None, 4096, {"tensor": 8, "pipeline": 8, "virtual": 12, "microbatches": 16, "shard": 2}, 0.457),
]


@cache
def dit(width: int, depth: int, heads: int, latents: tuple[int, int, int], kind: type[DiT] = DiT) -> ModelWork:
    with torch.device("meta"):
        model = kind(in_channels=16, text_dim=1024, width=width, depth=depth, heads=heads, modulation_rank=256)
    frames, rows, columns = latents
    inputs = {"latents_BCTHW": (1, 16, *latents), "text_BLD": (1, 512, 1024)}
    return work_of(model, inputs, frames * rows * columns // 4)


@cache
def nemotron() -> ModelWork:
    with torch.device("meta"):
        model = GPT(**NEMOTRON)
    return work_of(model, {"tokens_BS": (1, 4096)}, 4096)


@cache
def clock(work: ModelWork, network: str = "dgx_h100", gpu: str = "h100") -> Clock:
    return Clock(work, Machine(gpu_named(gpu), ingredient("network", network, Network)))


def plan(**degrees: int) -> ParallelPlan:
    schedule = {"schedule": "interleaved"} if degrees.get("virtual", 1) > 1 else {}
    return ParallelPlan(sequence=degrees.get("tensor", 1) > 1, **degrees, **schedule)


@pytest.mark.parametrize(("model", "sample", "degrees", "published"), PUBLISHED)
def test_published_rows_come_out_within_a_tenth(model, sample, degrees, published):
    work, of = nemotron() if model is None else dit(*model, sample), plan(**degrees)
    seconds = clock(work).step(of, 1, recompute=False).total
    flops = TRAINING_FACTOR * work.flops * of.microbatches * of.data
    assert flops / seconds / of.world / 989.4e12 == pytest.approx(published, rel=0.1)


def test_a_models_work_is_its_own_count_of_products():
    work = nemotron()
    assert work.parameters == pytest.approx(341.029e9, rel=1e-5) and work.depth == 96 and work.tokens == 4096
    assert (work.gathers, work.scatters) == (2, 2) and work.kv_share == pytest.approx(8 / 96)
    assert (work.head_dim, work.heads) == (192, 8) and work.last_split
    assert work.products_flops == pytest.approx(2 * 4096 * work.block_split, rel=1e-6)
    assert work.attentions[0].length == 4096 and work.attentions[0].causal
    lines = dit(4096, 18, 32, (32, 56, 80), STDiT)
    assert [(one.over, round(one.length)) for one in lines.attentions] == [
        ("tokens", 35_840), ("lines", 32), ("nothing", 1120), ("nothing", 512)
    ]  # fmt: skip
    assert (lines.gathers, lines.scatters) == (5, 5)


def test_recomputing_costs_a_forward_pass_more():
    one = clock(dit(4096, 28, 32, (32, 32, 32)))
    once, twice = (one.step(plan(shard=64), 1, recompute=again) for again in (False, True))
    assert 1.25 < twice.compute / once.compute < 1.4


def test_a_ring_hides_behind_a_long_sequence_and_not_behind_a_short_one():
    long, short = dit(4096, 28, 32, (32, 96, 96)), dit(4096, 28, 32, (4, 32, 32))
    over = plan(context=8, shard=8)
    assert clock(long).step(over, 1, recompute=False).context == 0
    assert clock(short).step(over, 1, recompute=False).context > 0


@pytest.mark.parametrize(("network", "times"), [("dgx_h100", 1), ("dgx_a100", 1.2), ("pcie_box", 1.2)])
def test_tensor_parallel_beyond_the_machine_costs_more(network, times):
    work = dit(6144, 48, 48, (32, 32, 32))
    inside, beyond = (
        clock(work, network).step(plan(tensor=size, shard=64 // size), 1, recompute=False) for size in (8, 16)
    )
    rack = clock(work, "gb200_nvl72", "gb200").step(plan(tensor=16, shard=4), 1, recompute=False)
    assert beyond.tensor > times * inside.tensor > 1.5 * times * rack.tensor


def test_a_pipeline_waits_less_with_virtual_stages_and_its_last_stage_has_the_vocabulary():
    one = clock(nemotron())
    slow, quick = (
        one.step(plan(tensor=8, pipeline=12, virtual=v, microbatches=48), 1, recompute=False) for v in (1, 8)
    )
    assert slow.waits / quick.waits == pytest.approx(8)
    blocks = Clock(replace(nemotron(), last_flops=0.0), one.machine)
    without = blocks.step(plan(tensor=8, pipeline=12, virtual=8, microbatches=48), 1, recompute=False)
    assert 1.08 < quick.compute / without.compute < 1.3


def test_shared_weights_are_hidden_behind_long_samples_and_not_on_a_slow_network():
    work, over = dit(4096, 28, 32, (32, 32, 32)), plan(shard=64)
    quick, slow = (clock(work, network).step(over, 1, recompute=False) for network in ("dgx_h100", "pcie_box"))
    assert quick.weights < 0.03 * quick.total and slow.weights > slow.compute


def test_an_optimizer_in_host_memory_updates_over_its_link():
    one = clock(dit(4096, 28, 32, (32, 32, 32)))
    here, there = (one.step(plan(shard=8), 1, recompute=False, offload=away) for away in (False, True))
    assert there.update > 20 * here.update and there.compute == here.compute


def test_fp32_takes_many_times_as_long():
    work, machine = dit(4096, 28, 32, (32, 32, 32)), clock(dit(4096, 28, 32, (32, 32, 32))).machine
    wide = Clock(work, machine, fp32=True).step(plan(shard=64), 1, recompute=False)
    assert wide.compute > 10 * Clock(work, machine).step(plan(shard=64), 1, recompute=False).compute


def test_only_a_pipeline_sends_from_stage_to_stage():
    one = clock(nemotron())
    alone, cut = (one.step(plan(tensor=8, pipeline=p, microbatches=48), 1, recompute=False) for p in (1, 2))
    assert alone.sends == 0 < cut.sends
