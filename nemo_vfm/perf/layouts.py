"""Lists every layout of a model on a number of GPUs that the engine would accept, and why it refuses the others.

The checks are the same functions that refuse a layout when a training starts; nothing of them is repeated here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import isqrt
from typing import Literal

from torch import nn

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.parallel.apply.apply_parallelism import require_divisible
from nemo_vfm.parallel.apply.pipeline_schedule import require_even
from nemo_vfm.parallel.context.token_order import own_spans
from nemo_vfm.parallel.fp8.use_fp8 import large_linears
from nemo_vfm.parallel.layers.temporal_all_to_all import places_of, require_frames
from nemo_vfm.parallel.layers.token_layout import require_divided
from nemo_vfm.parallel.plan.plan import ParallelPlan, Schedule
from nemo_vfm.parallel.plan.sharding_spec import Divisible

About = Literal["tensor", "context", "pipeline", "samples", "memory"]
Attention = Literal["all_gather", "ring", "ulysses", "ring_ulysses"]
Scheme = tuple[Attention, int]
Placed = tuple[ParallelPlan, int]


@dataclass(frozen=True, slots=True)
class Degrees:
    """A way to divide GPUs."""

    pipeline: int  #: see `ParallelPlan`, as the others
    replicate: int
    shard: int
    context: int
    tensor: int

    @property
    def data(self) -> int:
        """Ranks with samples of their own."""
        return self.replicate * self.shard

    @property
    def gpus(self) -> int:
        return self.pipeline * self.data * self.context * self.tensor


@dataclass(frozen=True, slots=True)
class RefusedLayout:
    """Why degrees do not go."""

    about: About  #: which degree is wrong, or memory
    degree: int  #: its value; of memory, the bytes that are needed
    why: str  #: the sentence of who refuses it


@dataclass(frozen=True, slots=True)
class Subject:
    """What is spread over GPUs."""

    model: nn.Module  #: on the meta device
    part: nn.Module  #: the same with two blocks, which says as much of its linears and heads, and quicker
    tokens: int  #: of a sample
    frames: int | None  #: latent frames of one, where the model attends along time; else None
    causal: bool  #: whether it is a language model
    batch: int  #: samples of a global batch
    others: tuple[int, ...] = ()  #: of other global batches: those of buckets that have their own
    #: whether schedules may compute gradients of weights by themselves; not where blocks are compiled
    splits_weights_apart: bool = True


def shared_by_all(gpus: int) -> Iterator[Degrees]:
    """Every way to write a number of GPUs as a product of the other degrees, all data ranks sharing weights.

    What the engine refuses does not depend on how they do.
    """
    for pipeline in divisors(gpus):
        for tensor in divisors(gpus // pipeline):
            for context in divisors(gpus // pipeline // tensor):
                yield Degrees(pipeline, 1, gpus // pipeline // tensor // context, context, tensor)


def weight_sharings(at: Degrees) -> list[Degrees]:
    """Every way in which data ranks share weights, from none of them to all."""
    return [Degrees(at.pipeline, at.data // part, part, at.context, at.tensor) for part in divisors(at.data)]


@cache
def divisors(number: int) -> tuple[int, ...]:
    """Of a number, from 1 up."""
    low = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return *low, *(number // n for n in reversed(low) if n * n != number)


class EngineLimits:
    """What of a subject the engine takes."""

    def __init__(self, subject: Subject, fp8: Fp8 | None = None) -> None:
        # Of a part of the model; the ends are those of the whole.
        self.subject, self.fp8 = subject, None if fp8 is None else replace(fp8, first_bf16=0, last_bf16=0)
        assert isinstance(subject.model, Divisible)
        how = subject.model.plan()
        self.depth, self.heads = len(list(subject.model.get_submodule(how.blocks).children())), how.heads
        self._said: dict[tuple[object, ...], str] = {}
        self._quickest: dict[tuple[int, int, int], Scheme] = {}

    def find_refusal(self, at: Degrees) -> RefusedLayout | None:
        """The first thing that is wrong with degrees, whatever the rest of the plan."""
        if why := self.objection_to_tensor(at.tensor):
            return RefusedLayout("tensor", at.tensor, why)
        if at.context > 1 and not self.schemes(at.tensor, at.context):
            return RefusedLayout("context", at.context, self._scheme(at.tensor, at.context, "ring", 1))
        if why := self._stages(at.pipeline, 1):
            return RefusedLayout("pipeline", at.pipeline, why)
        if why := self._once(("data", at.data), lambda: require_divisible(
            self.subject.model, ParallelPlan(shard=at.data))):  # fmt: skip
            return RefusedLayout("samples", at.data, why)

        def divide() -> None:
            for batch in (self.subject.batch, *self.subject.others):
                require_even(batch, at.data)

        if self._once(("samples", at.data), divide):
            return RefusedLayout("samples", at.data, f"a global batch of {self.subject.batch} samples cannot be "
                                 f"divided by {at.data} data ranks (replicate x shard)")  # fmt: skip
        own = self.subject.batch // at.data
        if at.pipeline > 1 and (why := self._once(("enough", at.pipeline, own), lambda: ParallelPlan(
            pipeline=at.pipeline, microbatches=own))):  # fmt: skip
            return RefusedLayout("pipeline", at.pipeline, why)
        return None

    def schemes(self, tensor: int, context: int) -> list[Scheme]:
        """Ways to attend over so many context ranks."""
        if context == 1:
            return [("ring", 1)]
        mixed = [n for n in divisors(context) if 1 < n < context]
        tried: list[Scheme] = [("ring", 1), ("ulysses", 1), *(("ring_ulysses", n) for n in mixed), ("all_gather", 1)]
        return [one for one in tried if not self._scheme(tensor, context, *one)]

    def quickest_scheme(
        self, at: Degrees, rows: int, sequence: bool, block_s: Callable[[ParallelPlan, int], float]
    ) -> Scheme:  # fmt: skip
        """Of the schemes; memory is much the same under each."""
        key = at.tensor, at.context, rows
        if key not in self._quickest:
            taken = {}
            for attention, ulysses in self.schemes(at.tensor, at.context):
                plan = ParallelPlan(
                    tensor=at.tensor, sequence=sequence, context=at.context, attention=attention, ulysses=ulysses
                )  # fmt: skip
                taken[attention, ulysses] = block_s(plan, rows)
            self._quickest[key] = min(taken, key=lambda one: taken[one])
        return self._quickest[key]

    def sequence(self, tensor: int, context: int) -> bool:
        """Whether tensor ranks may split tokens, which costs nothing and saves memory: then they shall."""
        return tensor > 1 and not self._once(("sequence", tensor, context), lambda: self._tokens(tensor, context))

    def stages(self, pipeline: int) -> list[tuple[int, Schedule | None]]:
        """(virtual stages, schedule) of so many devices: numbers that divide the blocks, and two."""
        if pipeline == 1:
            return [(1, None)]
        virtual = [v for v in range(2, self.depth // pipeline + 1)
                   if (v == 2 or self.depth % (pipeline * v) == 0) and not self._stages(pipeline, v)]  # fmt: skip
        kinds: list[Schedule] = ["interleaved", "zero_bubble"] if self.subject.splits_weights_apart else ["interleaved"]
        return [(1, "1f1b"), *product(virtual, kinds)]

    def rows(self, at: Degrees) -> list[int]:
        """Samples of a device in a microbatch, most first."""
        own = self.subject.batch // at.data
        least = at.pipeline if at.pipeline > 1 else 1
        return [rows for rows in reversed(divisors(own)) if own // rows >= least]

    def objection_to_tensor(self, tensor: int) -> str:
        """Why so many tensor ranks do not go; empty where they do."""

        def check() -> None:
            require_divisible(self.subject.part, ParallelPlan(tensor=tensor))
            if self.fp8 is not None:
                large_linears(self.subject.part, self.fp8, tensor)

        return self._once(("tensor", tensor), check)

    def _stages(self, pipeline: int, virtual: int) -> str:
        return self._once(("stages", pipeline, virtual), lambda: require_divisible(
            self.subject.model, ParallelPlan(pipeline=pipeline, virtual=virtual, microbatches=pipeline)))  # fmt: skip

    def _scheme(self, tensor: int, context: int, attention: Attention, ulysses: int) -> str:
        def check() -> None:
            plan = ParallelPlan(tensor=tensor, context=context, attention=attention, ulysses=ulysses)
            require_divisible(self.subject.part, plan)
            self._tokens(1, context)

        return self._once(("scheme", tensor, context, attention, ulysses), check)

    def _tokens(self, tensor: int, context: int) -> None:
        if self.subject.causal:
            own_spans(self.subject.tokens, rank=0, ranks=context, causal=True)
        require_divided(self.subject.tokens, context * tensor)
        if self.subject.frames is not None:
            require_frames(self.subject.frames, context, tensor)
            places_of(self.subject.tokens // context, self.subject.frames, context)

    def _once(self, key: tuple[object, ...], check: Callable[[], object]) -> str:
        """What a check objects to, asked once; empty where it does not."""
        if key not in self._said:
            try:
                check()
                self._said[key] = ""
            except ValueError as error:  # UserError is one
                self._said[key] = str(error)
        return self._said[key]


def plans(allowed: EngineLimits, at: Degrees, block_s: Callable[[ParallelPlan, int], float]) -> Iterator[Placed]:
    """Every plan of these degrees with the samples of a microbatch.

    Context ranks attend to each other in the way that is quickest by `block_s`, the seconds of a block.
    """
    sequence = allowed.sequence(at.tensor, at.context)
    for rows, (virtual, schedule) in product(allowed.rows(at), allowed.stages(at.pipeline)):
        attention, ulysses = allowed.quickest_scheme(at, rows, sequence, block_s)
        try:
            yield ParallelPlan(
                tensor=at.tensor, sequence=sequence, pipeline=at.pipeline, virtual=virtual, context=at.context,
                shard=at.shard, replicate=at.replicate, microbatches=allowed.subject.batch // at.data // rows,
                schedule=schedule, attention=attention, ulysses=ulysses,
            ), rows  # fmt: skip
        except ValueError:  # microbatches that do not make equal rounds over virtual stages
            continue
