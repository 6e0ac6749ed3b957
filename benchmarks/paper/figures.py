"""Computes what our model predicts for each figure of arXiv 2503.12964, and for published speed-ups by FP8."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from paper.workloads import H100, LARGE, SEVEN, ST_LARGE, ST_SEVEN, Size, layout, llama, planned, question, wan, work

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf.gpu_specs import PublishedConstants
from nemo_vfm.perf.layout_rules import RULES
from nemo_vfm.perf.layout_rules import RuleSize as Sizes
from nemo_vfm.perf.model_work import ModelWork
from nemo_vfm.perf.planner import LayoutChoice, Planner
from nemo_vfm.perf.step_time import Clock

#: The paper's four workloads: model, tokens, GPUs, layout (its table 1 and NeMo's readme name degrees, not batches).
WORKLOADS: tuple[tuple[Size, int, int, ParallelPlan], ...] = (
    (SEVEN, 8192, 64, layout(tensor=2, shard=32)),
    (SEVEN, 73_728, 64, layout(tensor=2, context=4, shard=8)),
    (LARGE, 8192, 64, layout(tensor=4, pipeline=4, shard=4, microbatches=16)),
    (LARGE, 73_728, 256, layout(tensor=8, context=8, shard=4)),
)
SCHEMES: tuple[Literal["ring", "ulysses"], ...] = ("ring", "ulysses")  # the paper has a ring
CONTEXTS = {1024: 512, 8192: 64, 73_728: 64, 294_912: 8}  # tokens: samples of a global batch


@dataclass(frozen=True)
class Row:
    """One line of a figure.

    Args:
        what: model and setting.
        published: theirs, and None where it is only drawn or not given.
        ours: predicted.
        note: what else is to be said.
    """

    what: str
    published: float | None
    ours: float | None
    note: str = ""


def step_s(of: ModelWork, plan: ParallelPlan, **how: object) -> float:
    """Seconds of a step with one sample in a microbatch."""
    return Clock(of, H100, **how).step(plan, 1, recompute=False).total  # type: ignore[arg-type]


def low_rank() -> Iterator[Row]:
    """Figure 7: the step with full modulations over that with modulations of rank 256, same width and layout."""
    for size, tokens, _, plan in WORKLOADS:
        full = work(replace(size, rank=None), tokens)
        saved = 1 - work(size, tokens).parameters / full.parameters
        ratio = step_s(full, plan) / step_s(work(size, tokens), plan)
        yield Row(f"{size.name}, {tokens:,} tokens", 1.2 if size is SEVEN and tokens == 8192 else None, ratio,
                  f"{100 * saved:.0f} % fewer parameters")  # fmt: skip


def fast_dit() -> Iterator[Row]:
    """Figure 8: shared weights alone (as Fast-DiT with FSDP), recomputing where they must, over the best layout."""
    for size, tokens, gpus, _ in WORKLOADS:
        planner = Planner(question(size, tokens, gpus))
        alone = [planner.choice(ParallelPlan(shard=gpus), recompute=again) for again in (False, True)]
        best = planned(size, tokens, gpus, gpus).ranked[0]
        fitting = next((one for one in alone if planner.question.fits(one.memory)), None)
        ratio = fitting.time.total / best.time.total if fitting else None
        needed = " and ".join(f"{one.memory.total / 2**30:.1f}" for one in alone)
        published = 1.85 if size is SEVEN and tokens == 8192 else None
        theirs = "; theirs: out of memory" if size is LARGE else ""
        last = "out of memory" if fitting is None else "recomputing" if fitting.recompute else "fits"
        yield Row(f"{size.name}, {tokens:,} tokens", published, ratio, f"{needed} GiB, {last}{theirs}; {named(best)}")


def named(choice: LayoutChoice) -> str:
    """Its layout, and whether it recomputes."""
    return f"{choice.plan}{', recomputing' if choice.recompute else ''}"


def scaling() -> Iterator[Row]:
    """Figure 9: efficiency of four times the GPUs on the same global batch of four samples a data rank."""
    for size, tokens, gpus, plan in WORKLOADS:
        count = 4 * plan.microbatches
        few = replace(plan, microbatches=count)
        many = replace(plan, shard=4 * plan.shard, microbatches=plan.microbatches)
        efficiency = step_s(work(size, tokens), few) / (4 * step_s(work(size, tokens), many))
        yield Row(f"{size.name}, {tokens:,} tokens, {gpus} to {4 * gpus}", 95.0, 100 * efficiency, f"{plan}")


def best_layouts() -> Iterator[tuple[Size, int, LayoutChoice]]:
    """Figure 10: the best layout of 64 GPUs by context."""
    for size in (SEVEN, LARGE):
        for tokens, batch in CONTEXTS.items():
            yield size, tokens, planned(size, tokens, batch, 64).ranked[0]


def exchange() -> Iterator[Row]:
    """Table 2: every attention of an ST-DiT in a ring over the step with frames exchanged."""
    cases = (
        (ST_SEVEN, 36_864, layout(tensor=2, pipeline=4, virtual=2, context=4, shard=2, microbatches=8), 1.118),
        (ST_LARGE, 36_864, layout(context=8, shard=8), 1.229),
        (ST_LARGE, 36_864, layout(tensor=2, pipeline=4, context=4, shard=2, microbatches=8), 1.070),
        (ST_SEVEN, 73_728, layout(tensor=2, pipeline=2, context=8, shard=2, microbatches=8), 2.407),
        (ST_LARGE, 73_728, layout(tensor=2, pipeline=4, context=8, microbatches=8), 2.257),
    )
    for size, tokens, plan, published in cases:
        mine = work(size, tokens)
        ring = tuple(replace(one, over="tokens") if one.length != 512 else one for one in mine.attentions)
        ratio = step_s(replace(mine, attentions=ring), plan) / step_s(mine, plan)
        yield Row(f"{size.name}, {tokens:,} tokens", published, ratio, f"{plan}")


def sampled(clock: Clock, gpus: int, scheme: Literal["ring", "ulysses"]) -> tuple[float, ParallelPlan]:
    """Seconds of a forward pass with guidance, and the quickest tensor degree for this scheme of context ranks."""
    layouts = [
        replace(layout(tensor=tensor, context=gpus // tensor), attention=scheme)
        for tensor in (1, 2, 4, 8)
        if gpus % tensor == 0 and (scheme == "ring" or SEVEN.heads % gpus == 0)
    ]
    return min(((clock.forward_s(plan, 2), plan) for plan in layouts), key=lambda one: one[0])


def inference() -> Iterator[Row]:
    """5.2: efficiency of sampling with the 7B on 56,320 tokens, conditional and unconditional together."""
    clock = Clock(work(SEVEN, 56_320), H100)
    one = clock.forward_s(ParallelPlan(), 2)
    alone = 100 * one / 32 / clock.forward_s(ParallelPlan(context=32), 2)
    yield Row("7B, 56,320 tokens, 32 GPUs", None, alone, "context 32, ring, no tensor ranks")
    for gpus in (8, 16, 32):
        for scheme in SCHEMES:
            seconds, plan = sampled(clock, gpus, scheme)
            published = 85.0 if gpus == 32 and scheme == "ring" else None
            yield Row(f"7B, 56,320 tokens, {gpus} GPUs", published, 100 * one / gpus / seconds, _named(plan))


def fp8_attention() -> Iterator[Row]:
    """5.2: a forward pass with attention at the FP8 peak, of which it reaches the share that linears do."""
    base, gpu = PublishedConstants(), H100.gpu
    assert gpu.fp8_tflops is not None
    faster = gpu.fp8_tflops / gpu.bf16_tflops * base.max_fp8 / base.max_linear
    quick = replace(H100, kernels=PublishedConstants(max_attention=base.max_attention * faster))
    wide, narrow = (Clock(work(SEVEN, 56_320), machine) for machine in (H100, quick))
    alone = ParallelPlan()
    yield Row("7B, 56,320 tokens, 1 GPU", 1.28, wide.forward_s(alone, 2) / narrow.forward_s(alone, 2), "one device")
    for scheme in SCHEMES:
        seconds, plan = sampled(wide, 32, scheme)
        published = 1.48 if scheme == "ring" else None
        yield Row("7B, 56,320 tokens, 32 GPUs", published, seconds / narrow.forward_s(plan, 2), _named(plan))


def _named(plan: ParallelPlan) -> str:
    return f"{plan}, {plan.attention}" if plan.context > 1 else f"{plan}"


def fp8_linears() -> Iterator[Row]:
    """Published speed-ups of steps by linears in FP8 over bf16, compiled."""
    eight, seventy = llama(4096, 32, 32, 14_336), llama(8192, 80, 64, 28_672)
    for name, of, plan, rows, again, published in (
        ("Llama 3 8B, 8 H100, torchtitan", eight, ParallelPlan(shard=8), 2, False, 1.28),
        ("Llama 3 70B, 256 H100, torchtitan, asynchronous TP", seventy, layout(tensor=8, shard=32), 16, True, 1.36),
    ):
        wide, quick = (Clock(of, H100, fp8=spec).step(plan, rows, recompute=again).total for spec in (None, Fp8()))
        yield Row(name, published, wide / quick)
    video = wan(21, 90, 160)
    wide, quick = (Clock(video, H100, fp8=spec).forward_s(ParallelPlan(), 1) for spec in (None, Fp8()))
    yield Row(f"Wan 2.1 14B, sampling {video.tokens:,} tokens (its length is not published)", 1.13, wide / quick)


def rules() -> Iterator[tuple[str, int, int, str]]:
    """(rule, cases in which the best layout follows it, cases of which it speaks, those in which it does not)."""
    found = [(size, tokens, choice.plan, Sizes(work(size, tokens).parameters, tokens, 8))
             for size, tokens, choice in best_layouts()]  # fmt: skip
    for rule in RULES:
        spoken = [one for one in found if rule.speaks(one[3])]
        against = [one for one in spoken if not rule.followed(one[2], one[3])]
        missed = "; ".join(f"{size.name} {tokens:,}: {plan}" for size, tokens, plan, _ in against)
        yield f"{rule.number}. {rule.text}", len(spoken) - len(against), len(spoken), missed
