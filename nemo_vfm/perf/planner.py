"""Finds the layouts of a model on a number of GPUs that fit, the fastest first, and says why the rest do not.

Layouts that differ only in details (order of work, microbatches, which scheme, how data ranks share weights) are one
family, represented by its fastest member.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf.layouts import (
    About,
    Degrees,
    EngineLimits,
    RefusedLayout,
    Subject,
    divisors,
    plans,
    shared_by_all,
    weight_sharings,
)
from nemo_vfm.perf.memory import Memory, memory
from nemo_vfm.perf.model_facts import ModelFacts
from nemo_vfm.perf.model_work import ModelWork
from nemo_vfm.perf.step_time import Clock, Machine, StepTime, TimedStep

#: Ten times the largest machines of today; the number of ways to divide more has no end.
MAX_GPUS = 1_048_576
PrecisionName = Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True)
class PlanQuery:
    """What is planned."""

    subject: Subject  #: the model, its samples and its batch
    work: ModelWork  #: of the model on one sample
    known: ModelFacts  #: of its memory
    machine: Machine  #: what it would run on
    precision: PrecisionName = "bf16"  #: of the arithmetic
    fp8: Fp8 | None = None  #: how the blocks' large linears are in FP8; None has them in `precision`
    average: bool = False  #: whether a running average of the weights is kept
    offload: bool = False  #: whether the optimizer's state is in host memory
    beside: int = 0  #: bytes of other networks that stand on each GPU: encoders and codecs

    @property
    def arithmetic(self) -> str:
        """fp32, bf16, or fp8 where large linears are in it."""
        return self.precision if self.fp8 is None else "fp8"

    def fits(self, needed: Memory) -> bool:
        return needed.total <= self.machine.gpu.usable_bytes


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """One layout with what it costs."""

    plan: ParallelPlan  #: the layout
    rows: int  #: samples of a device in a microbatch
    recompute: bool  #: whether blocks run again in backward
    time: StepTime  #: of a step
    memory: Memory  #: of the fullest device

    @property
    def family(self) -> tuple[int, int, int, int]:
        """What tells it from others: tensor, pipeline, context, data."""
        return self.plan.tensor, self.plan.pipeline, self.plan.context, self.plan.data


@dataclass(frozen=True, slots=True)
class RefusedGroup:
    """Degrees that are refused for one kind of reason."""

    about: About  #: which degree is wrong, or memory
    count: int  #: how many ways to divide the GPUs that concerns
    values: tuple[int, ...]  #: of the degree that were refused; of memory, none
    why: str  #: one of the sentences; of memory, that of the layout which misses it by least


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The result of planning for a number of GPUs."""

    gpus: int  #: how many
    ranked: tuple[LayoutChoice, ...]  #: what fits, the quickest of each family, best first
    refused: tuple[tuple[int, RefusedLayout], ...]  #: how many ways to divide the GPUs will not do, and why
    nearest: LayoutChoice | None  #: of what does not fit, what misses it by least; None where nothing was too large

    def groups(self) -> list[RefusedGroup]:
        """Reasons, the most frequent first."""
        groups = []
        for kind in dict.fromkeys(why.about for _, why in self.refused):
            found = [why for _, why in self.refused if why.about == kind]
            ways = sum(ways for ways, why in self.refused if why.about == kind)
            if kind == "memory":
                groups.append(RefusedGroup(kind, ways, (), min(found, key=lambda why: why.degree).why))
            else:
                groups.append(RefusedGroup(kind, ways, tuple(sorted({why.degree for why in found})), found[-1].why))
        return sorted(groups, key=lambda group: -group.count)

    def rank_of(self, family: tuple[int, int, int, int]) -> int | None:
        """The place of a family, counted from 1."""
        return next((place for place, one in enumerate(self.ranked, 1) if one.family == family), None)


@dataclass(frozen=True, slots=True)
class _TriedLayout:
    """A layout in the running."""

    timed: TimedStep  #: the layout and its time, but for shared weights
    rows: int  #: samples of a device in a microbatch
    recompute: bool  #: whether blocks run again in backward


#: Layouts but for rows, and rows of which neither they nor more fit.
_Full = dict[tuple[object, ...], int]


class Planner:
    """Answers one question for any number of GPUs."""

    def __init__(self, question: PlanQuery) -> None:
        self.question, self.allowed = question, EngineLimits(question.subject, question.fp8)
        fp32 = question.precision == "fp32"
        self.clock = Clock(question.work, question.machine, fp32=fp32, fp8=question.fp8)
        self._memories: dict[tuple[object, ...], Memory] = {}
        self._layouts: dict[tuple[int, int, int, int], list[_TriedLayout]] = {}

    def answer(self, gpus: int) -> PlanResult:
        """Look at every layout.

        Raises:
            UserError: there are no GPUs, or more than anybody has.
        """
        if not 1 <= gpus <= MAX_GPUS:
            raise UserError(f"a plan is for at least one GPU and at most {MAX_GPUS:,}, got {gpus:,}")
        families: dict[tuple[int, int, int, int], LayoutChoice] = {}
        refused, over = [], []
        for every in shared_by_all(gpus):
            if (refusal := self.allowed.find_refusal(every)) is not None:
                refused.append((len(divisors(every.data)), refusal))
                continue
            best: LayoutChoice | None = None
            full: _Full = {}
            for at in reversed(weight_sharings(every)):
                if at.shard * at.context == 1:  # weights that nobody shares need no room to be brought together
                    full = {}
                found = self._best_layout(at, inf if best is None else best.time.total, full)
                if found is not None and not self.question.fits(found.memory):
                    over.append(found)
                    gpu = self.question.machine.gpu
                    needed, there = found.memory.total / 2**30, gpu.usable_bytes / 2**30
                    why = (f"at least {needed:.1f} GiB with recomputation and the smallest microbatch, and one "
                           f"{gpu.name} has {there:.1f} to fill; add shard, context or tensor ranks, or set "
                           "engine.offload_optimizer")  # fmt: skip
                    refused.append((1, RefusedLayout("memory", found.memory.total, why)))
                elif found is not None:
                    best = families[found.family] = found
        ranked = sorted(families.values(), key=lambda one: one.time.total)
        nearest = min(over, key=lambda one: one.memory.total, default=None)
        return PlanResult(gpus, tuple(ranked), tuple(refused), nearest)

    def choice(self, plan: ParallelPlan, *, recompute: bool) -> LayoutChoice:
        """What one layout costs, whether it fits or not.

        Raises:
            UserError: the engine would not take it.
        """
        at = Degrees(plan.pipeline, plan.replicate, plan.shard, plan.context, plan.tensor)
        if (why := self.allowed.find_refusal(at)) is not None:
            raise UserError(why.why)
        rows = max(1, self.question.subject.batch // plan.data // plan.microbatches)
        time = self.clock.step(plan, rows, recompute=recompute, offload=self.question.offload)
        return LayoutChoice(plan, rows, recompute, time, self._memory(plan, rows, recompute))

    def some_fits(self, at: Degrees) -> bool:
        """Whether the layout of these degrees that needs least fits: one sample at a time, and recomputation."""
        rows = min(self.allowed.rows(at))
        plan = ParallelPlan(
            tensor=at.tensor, sequence=self.allowed.sequence(at.tensor, at.context), pipeline=at.pipeline,
            context=at.context, shard=at.shard, replicate=at.replicate,
            microbatches=self.question.subject.batch // at.data // rows,
        )  # fmt: skip
        return self.question.fits(self._memory(plan, rows, recompute=True))

    def _best_layout(self, at: Degrees, limit: float, full: "_Full") -> LayoutChoice | None:
        """The quickest layout of these degrees that fits; where none does, the one that needs least.

        None where some fit and none takes less than `limit`: then a quicker one of its family is known.
        What is found not to fit goes into `full`, and does not fit with fewer ranks to share weights either.
        """
        key = at.pipeline, at.data, at.context, at.tensor
        if key not in self._layouts:  # of these degrees, however data ranks share weights
            self._layouts[key] = [
                _TriedLayout(self.clock.time_plan(plan, rows, recompute=again), rows, again)
                for plan, rows in plans(self.allowed, at, self.clock.block_s)
                for again in (False, True)
            ]
        tried = self._layouts[key]
        least = min(tried, key=lambda one: (one.rows, one.timed.plan.virtual, not one.recompute))
        smallest = self._as_choice(at, least)
        if not self.question.fits(smallest.memory):
            return smallest
        offload = self.question.offload
        totals = sorted((self.clock.total(one.timed, at, offload=offload), n) for n, one in enumerate(tried))
        for total, number in totals:
            if total >= limit:
                return None
            one = tried[number]
            kind = one.timed.plan.virtual, one.timed.plan.schedule, one.recompute
            if one.rows >= full.get(kind, one.rows + 1):
                continue
            if self.question.fits((made := self._as_choice(at, one)).memory):
                return made
            full[kind] = one.rows
        return smallest if smallest.time.total < limit else None

    def _as_choice(self, at: Degrees, one: "_TriedLayout") -> LayoutChoice:
        """With weights shared as these degrees have it."""
        plan = replace(one.timed.plan, shard=at.shard, replicate=at.replicate)
        time = self.clock.shared_as(one.timed, at, offload=self.question.offload)
        return LayoutChoice(plan, one.rows, one.recompute, time, self._memory(plan, one.rows, one.recompute))

    def _memory(self, plan: ParallelPlan, rows: int, recompute: bool) -> Memory:
        """Neither copies nor the order of a pipeline's work matter."""
        key = (plan.pipeline, plan.shard, plan.context, plan.tensor, plan.sequence, plan.virtual, plan.microbatches,
               rows, recompute)  # fmt: skip
        if key not in self._memories:
            asked = self.question
            own = memory(
                asked.known, plan, precision=asked.precision, fp8=asked.fp8, offload_optimizer=asked.offload,
                recompute="blocks" if recompute else "none", microbatch_rows=rows, average=asked.average,
            )  # fmt: skip
            self._memories[key] = replace(own, beside=asked.beside, workspaces=asked.machine.gpu.workspaces)
        return self._memories[key]


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """What a layout costs, predicted."""

    step_s: float  #: seconds of a step
    #: model FLOPs utilisation, 0 to 1: of forward and backward (`perf/flops.py`), causal attention counted whole, over
    #: the bf16 peak
    mfu: float
    tokens_per_s: float  #: of all GPUs
    waits: float  #: share of the step that pipeline devices wait
    exchanges: float  #: share of it that exchanges take beside the arithmetic
    days: float | None  #: of the training, without stops; None where nobody knows how many steps it has
    gpu_hours: float | None  #: of all GPUs in these days


def cost(choice: LayoutChoice, question: PlanQuery, steps: int | None) -> LayoutCost:
    """Reckon one layout; `steps` of the training are None where they are not known."""
    time, gpus, batch = choice.time, choice.plan.world, question.subject.batch
    peak = question.machine.gpu.flops_per_s * gpus
    seconds = None if steps is None else steps * time.total
    return LayoutCost(
        step_s=time.total, mfu=question.work.training_flops * batch / time.total / peak,
        tokens_per_s=batch * question.subject.tokens / time.total, waits=time.waits / time.total,
        exchanges=(time.tensor + time.context + time.weights + time.sends) / time.total,
        days=None if seconds is None else seconds / 86_400,
        gpu_hours=None if seconds is None else seconds * gpus / 3600,
    )  # fmt: skip
