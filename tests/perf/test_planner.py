"""Tests which layouts fit, in which order, and why the others do not."""

import time
from collections import Counter
from dataclasses import replace
from functools import cache
from math import prod

import pytest
import torch

from nemo_vfm.config import ingredient
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.parallel.apply.apply_parallelism import require_divisible
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf.gpu_specs import gpu_named
from nemo_vfm.perf.layout_rules import RuleSize, judge_layout
from nemo_vfm.perf.layouts import (
    Degrees,
    EngineLimits,
    RefusedLayout,
    Subject,
    divisors,
    plans,
    shared_by_all,
    weight_sharings,
)
from nemo_vfm.perf.memory import memory
from nemo_vfm.perf.memory_remedies import NARROW, NO_AVERAGE, OFFLOAD, Remedy, remedies, smallest_number
from nemo_vfm.perf.model_facts import ModelFacts, facts, sketch
from nemo_vfm.perf.model_work import work_of
from nemo_vfm.perf.network import Network
from nemo_vfm.perf.planner import Planner, PlanQuery, PlanResult, cost
from nemo_vfm.perf.step_time import Machine

SIZES = {"small": (4096, 28, 32), "large": (6144, 48, 48)}


def machine(gpu: str = "h100", network: str = "dgx_h100") -> Machine:
    return Machine(gpu_named(gpu), ingredient("network", network, Network))


@cache
def built(size: str, kind: type[DiT] = DiT) -> tuple[DiT, ModelFacts]:
    """A model of the paper's sizes, and what its blocks hold: traced once, whatever the length of samples."""
    width, depth, heads = SIZES[size]
    with torch.device("meta"):
        model = kind(in_channels=16, text_dim=1024, width=width, depth=depth, heads=heads, modulation_rank=256)
    return model, sketch(facts(model, shapes((32, 32, 32))))


def shapes(latents: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    return {"latents_BCTHW": (1, 16, *latents), "text_BLD": (1, 512, 1024)}


def question(size: str, latents: tuple[int, int, int], batch: int = 64, gpu: str = "h100") -> PlanQuery:
    model, known = built(size)
    tokens = prod(latents) // 4
    part = known.model
    assert isinstance(part, torch.nn.Module)
    subject = Subject(model=model, part=part, tokens=tokens, frames=None, causal=False, batch=batch)
    known = replace(known, tokens=tokens, shapes=shapes(latents))
    return PlanQuery(subject=subject, work=work_of(model, shapes(latents), tokens), known=known, machine=machine(gpu))


def subject(model: torch.nn.Module, **given: object) -> Subject:
    usual = {"model": model, "part": model, "tokens": 64, "frames": None, "causal": False, "batch": 8}
    return Subject(**{**usual, **given})


def tiny(kind: type[DiT] = DiT) -> DiT:
    with torch.device("meta"):
        return kind(in_channels=4, text_dim=8, width=48, depth=6, heads=4)


def test_every_product_of_five_degrees_comes_once():
    found = [at for every in shared_by_all(24) for at in weight_sharings(every)]
    assert len(set(found)) == len(found) == 35 * 5  # three twos fall on five axes in 35 ways, a three in 5
    assert all(one.pipeline * one.data * one.context * one.tensor == 24 for one in found)


def test_what_is_refused_is_told_in_the_engines_words():
    model = tiny()
    allowed = EngineLimits(subject(model))
    with pytest.raises(UserError) as heads:
        require_divisible(model, ParallelPlan(tensor=8))
    why = allowed.find_refusal(Degrees(1, 1, 1, 1, 8))
    assert why is not None and (why.about, why.degree, why.why) == ("tensor", 8, str(heads.value))
    said = {at: allowed.find_refusal(Degrees(*at)) for at in
            [(8, 1, 1, 1, 1), (1, 1, 16, 1, 1), (1, 1, 1, 128, 1), (4, 1, 4, 1, 1), (2, 1, 2, 2, 2)]}  # fmt: skip
    assert [None if one is None else one.about for one in said.values()] == [
        "pipeline", "samples", "context", "pipeline", None
    ]  # fmt: skip
    assert "64 tokens cannot be divided among 128" in said[1, 1, 1, 128, 1].why
    assert "microbatches = 2 is below parallel.pipeline = 4" in said[4, 1, 4, 1, 1].why


def test_tensor_ranks_that_leave_sizes_without_products_in_fp8_are_refused():
    with torch.device("meta"):
        model = DiT(in_channels=4, text_dim=32, width=64, depth=2, heads=8)
    wide, narrow = (Degrees(1, 1, 1, 1, tensor) for tensor in (4, 8))
    assert EngineLimits(subject(model)).find_refusal(narrow) is None
    allowed = EngineLimits(subject(model), Fp8(first_bf16=1, last_bf16=1))
    why = allowed.find_refusal(narrow)
    assert allowed.find_refusal(wide) is None and why is not None
    assert "self_attention.qkv has 24 out_features on each rank, but FP8 by recipe=current needs" in why.why


def test_time_lines_and_causal_chunks_are_refused_where_the_engine_would():
    lines = EngineLimits(subject(tiny(STDiT), tokens=6 * 16, frames=6))
    assert lines.find_refusal(Degrees(1, 1, 1, 2, 1)) is None
    why = lines.find_refusal(Degrees(1, 1, 1, 4, 1))
    assert why is not None and "6 latent frames cannot be divided" in why.why
    with torch.device("meta"):
        model = GPT(vocab=64, width=32, depth=2, heads=4, groups=2, mlp_hidden=64)
    text = EngineLimits(subject(model, tokens=30, causal=True))
    why = text.find_refusal(Degrees(1, 1, 1, 2, 1))
    assert why is not None and "two equal chunks" in why.why
    assert text.find_refusal(Degrees(1, 1, 1, 1, 4)) is None  # pairs of ranks share a head of keys and values
    why = text.find_refusal(Degrees(1, 1, 1, 1, 8))
    assert why is not None and "2 attention heads (4 of queries) cannot be divided by 8" in why.why


def test_every_plan_that_is_offered_is_one_that_the_engine_takes():
    model = tiny()
    allowed, seen = EngineLimits(subject(model)), Counter()
    for at in (at for every in shared_by_all(8) for at in weight_sharings(every)):
        if allowed.find_refusal(at) is None:
            for plan, rows in plans(allowed, at, lambda plan, rows: 1.0):
                require_divisible(model, plan)
                assert plan.world == 8 and rows * plan.microbatches * plan.data == 8
                assert (64 // plan.context) % (plan.tensor if plan.sequence else 1) == 0
                seen[plan.schedule, plan.virtual] += 1
    assert {("1f1b", 1), ("interleaved", 2), ("zero_bubble", 2), ("zero_bubble", 3), (None, 1)} <= set(seen)
    kept = EngineLimits(subject(model, splits_weights_apart=False))
    assert {schedule for _, schedule in kept.stages(2)} == {"1f1b", "interleaved"}


def test_reasons_come_with_the_max_frequent_first_and_with_every_degree_once():
    refused = [(1, RefusedLayout("memory", 90, "by far")), (2, RefusedLayout("memory", 81, "nearly")),
               (3, RefusedLayout("tensor", 8, "heads")), (4, RefusedLayout("tensor", 4, "heads")),
               (1, RefusedLayout("tensor", 8, "heads"))]  # fmt: skip
    found = PlanResult(8, (), tuple(refused), None).groups()
    assert [(one.about, one.count, one.values, one.why) for one in found] == [
        ("tensor", 8, (4, 8), "heads"), ("memory", 3, (), "nearly")
    ]  # fmt: skip


def test_the_shares_of_a_step_add_up_and_a_training_costs_as_many_steps_as_it_has():
    asked = question("small", (32, 32, 32))
    plan = ParallelPlan(tensor=2, sequence=True, pipeline=2, shard=2, context=2, attention="ulysses", microbatches=8)
    chosen = Planner(asked).choice(plan, recompute=False)
    found, time = cost(chosen, asked, 1000), chosen.time
    assert min(time.tensor, time.context, time.weights, time.sends, time.waits) > 0
    assert found.exchanges + found.waits == pytest.approx(1 - (time.compute + time.update) / time.total)
    assert found.step_s == time.total and found.days == pytest.approx(1000 * time.total / 86_400)
    assert found.gpu_hours == pytest.approx(16 * 24 * found.days)
    assert found.tokens_per_s == pytest.approx(64 * 8192 / time.total)
    assert found.mfu == pytest.approx(asked.work.training_flops * 64 / time.total / (16 * 989.4e12))
    assert (cost(chosen, asked, None).days, cost(chosen, asked, None).gpu_hours) == (None, None)


def test_the_quickest_way_to_attend_is_taken():
    allowed = EngineLimits(subject(tiny()))
    seconds = {"ring": 3.0, "ulysses": 1.0, "ring_ulysses": 2.0, "all_gather": 4.0}
    (taken, *_) = [plan for plan, _ in plans(allowed, Degrees(1, 1, 1, 4, 1), lambda plan, _: seconds[plan.attention])]
    assert taken.attention == "ulysses"
    assert [one for one, _ in allowed.schemes(1, 8)] == ["ring", "ring_ulysses", "ring_ulysses", "all_gather"]


@pytest.mark.slow
def test_all_that_is_ranked_fits_and_the_quickest_comes_first():
    planner = Planner(question("small", (32, 32, 32)))
    answer = planner.answer(16)
    seconds = [one.time.total for one in answer.ranked]
    assert seconds == sorted(seconds) and len({one.family for one in answer.ranked}) == len(seconds) > 5
    assert all(planner.question.fits(one.memory) and one.plan.world == 16 for one in answer.ranked)
    alone = answer.rank_of((1, 1, 1, 16))
    assert alone is not None and answer.ranked[alone - 1].recompute  # 7 B on 8,192 tokens: too much without
    assert sum(group.count for group in answer.groups()) == sum(ways for ways, _ in answer.refused)
    assert {group.about for group in answer.groups()} <= {"tensor", "context", "pipeline", "samples", "memory"}


def test_a_smaller_gpu_leaves_fewer_layouts_and_says_what_misses_by_least():
    large, small = (Planner(question("small", (32, 32, 32), gpu=gpu)).answer(4) for gpu in ("h200", "a100_40"))
    assert len(large.ranked) > len(small.ranked)
    refused = [why for _, why in small.refused if why.about == "memory"]
    assert refused and all(
        why.why.startswith("at least ") and "a100_40" in why.why and why.degree > 2**30 for why in refused
    )
    assert small.nearest is not None and small.nearest.memory.total > small.nearest.plan.world


#: Latents, and samples of a global batch that make a step of 0.5 to 2 M tokens.
LENGTHS = {1024: ((4, 32, 32), 512), 8192: ((32, 32, 32), 64), 294_912: ((32, 192, 192), 8)}


def best(size: str, tokens: int) -> tuple[ParallelPlan, dict[int, bool]]:
    """The quickest layout of 64 GPUs, and what the rules say of it."""
    asked = question(size, *LENGTHS[tokens])
    plan = Planner(asked).answer(64).ranked[0].plan
    of = RuleSize(asked.work.parameters, asked.work.tokens, 8)
    return plan, {rule.number: follows for rule, follows in judge_layout(plan, of)}


@pytest.mark.slow
def test_the_best_strategy_changes_with_the_context():
    alone, follows = best("small", 1024)
    assert alone.shard == 64 and follows == {1: True}
    (medium, _), (long, follows) = best("small", 8192), best("small", 294_912)
    assert 1 < medium.context < long.context and long.shard < medium.shard and follows == {2: True, 3: True}


@pytest.mark.soak
def test_the_best_strategy_changes_with_the_model_too_and_none_is_best_everywhere():
    found = {(size, tokens): best(size, tokens) for size in SIZES for tokens in LENGTHS}
    assert len({plan for plan, _ in found.values()}) == 6
    assert found["small", 1024][0].pipeline == 1 < found["large", 1024][0].pipeline
    assert all(found["large", tokens][1][3] for tokens in LENGTHS)  # a large model is never left unsplit


def test_a_thousand_gpus_are_looked_at_in_seconds():
    planner = Planner(question("small", (32, 32, 32), batch=1024))
    planner.answer(2)  # the traces
    begin = time.process_time()
    answer = planner.answer(1024)
    assert len(answer.ranked) > 20 and time.process_time() - begin < 8


def test_a_million_gpus_are_answered_and_more_are_refused():
    planner = Planner(question("small", (32, 32, 32), batch=1024))
    assert planner.answer(1_000_000).groups()
    with pytest.raises(UserError, match="at most 1,048,576, got 2,000,000"):
        planner.answer(2_000_000)


def test_what_a_layout_needs_does_not_depend_on_what_was_asked_before():
    with torch.device("meta"):
        model = GPT(vocab=2048, width=64, depth=4, heads=8, groups=4, mlp_hidden=128)
    layouts = [ParallelPlan(context=n, shard=2, tensor=t, sequence=t > 1) for n in (1, 2) for t in (1, 2)]
    layouts.append(ParallelPlan(context=8, shard=2))

    def asked(order: list[ParallelPlan]) -> dict[ParallelPlan, int]:
        known = sketch(facts(model, {"tokens_BS": (1, 3000)}))  # no multiple of the runs
        return {plan: memory(known, plan).total for plan in order}

    assert asked(layouts) == asked(layouts[::-1])


def differences(size: str, cases: list[tuple[ParallelPlan, int]]) -> list[float]:
    """Of a sketch from traces, relative."""
    model, known = built(size)
    exact = facts(model, shapes((32, 32, 32)))
    found = [[memory(which, plan, microbatch_rows=rows).total for which in (known, exact)] for plan, rows in cases]
    return [abs(quick / slow - 1) for quick, slow in found]


def test_a_sketch_says_what_a_trace_says():
    eight = ParallelPlan(tensor=8, sequence=True, shard=2)
    assert max(differences("small", [(eight, 1)])) < 0.02


@pytest.mark.soak
def test_a_sketch_says_what_traces_say_of_several_samples_pipelines_and_weights_that_nobody_shares():
    pipeline = ParallelPlan(tensor=8, sequence=True, pipeline=2, microbatches=4)
    cases = [(ParallelPlan(shard=4), 2), (pipeline, 1), (ParallelPlan(tensor=4, sequence=True), 2)]
    assert max(differences("small", cases) + differences("large", cases)) < 0.03


def again(asked: PlanQuery, one: Remedy) -> tuple[int, float]:
    """What the model says of a remedy that is applied from the start, and what its GPU has."""
    machine = replace(asked.machine, gpu=gpu_named(one.gpu)) if one.gpu else asked.machine
    needed = memory(
        asked.known, one.choice.plan, microbatch_rows=one.choice.rows,
        recompute="blocks" if one.choice.recompute else "none",
        precision="bf16" if NARROW in one.settings else asked.precision,
        offload_optimizer=OFFLOAD in one.settings, average=asked.average and NO_AVERAGE not in one.settings,
    )  # fmt: skip
    return needed.total + machine.gpu.workspaces, machine.gpu.usable_bytes


@pytest.mark.parametrize(("gpu", "gpus", "plan", "latents", "precision"), [
    ("h100", 1, ParallelPlan(), (4, 16, 16), "bf16"), ("a100_40", 4, ParallelPlan(shard=4), (32, 32, 32), "bf16"),
    ("l4", 8, ParallelPlan(tensor=2, sequence=True, shard=4), (4, 32, 32), "fp32"),
    ("h100", 8, ParallelPlan(pipeline=2, shard=2, replicate=2, microbatches=2), (32, 64, 64), "bf16"),
])  # fmt: skip
def test_every_remedy_fits_by_the_model_and_none_is_larger_than_it_must_be(gpu, gpus, plan, latents, precision):
    asked = replace(question("small", latents, batch=8, gpu=gpu), precision=precision, average=True)
    planner = Planner(asked)
    start = planner.choice(plan, recompute=False)
    found = remedies(asked, start, planner.answer(gpus))
    assert not asked.fits(start.memory) and found
    for one in found:
        needed, room = again(asked, one)
        assert needed == one.choice.memory.total <= room and one.choice.plan.world == gpus
        assert not any(other.levers < one.levers for other in found)
    assert [one.choice.time.total for one in found] == sorted(one.choice.time.total for one in found)


def test_where_nothing_helps_the_fewest_gpus_that_would_are_told():
    asked = question("large", (32, 192, 192), batch=4, gpu="rtx_4090")
    planner = Planner(asked)
    answer = planner.answer(1)
    assert answer.nearest is not None and not answer.ranked and not remedies(asked, answer.nearest, answer)
    more = smallest_number(planner, 1)
    assert more is not None and planner.answer(more).ranked
    fewer = [n for n in range(2, more) if n < 8 or n % 8 == 0]
    assert not any(planner.answer(n).ranked for n in fewer)


def test_where_one_gpu_is_enough_none_are_added():
    assert smallest_number(Planner(question("small", (4, 16, 16), batch=4, gpu="gb200")), 0) == 1


def test_divisors_come_once_and_in_order():
    assert all(divisors(n) == tuple(d for d in range(1, n + 1) if n % d == 0) for n in range(1, 200))
