# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A layout that does not fit in; the fewest changes after which it does, and what they cost, out."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations

from nemo_vfm.parallel.plan import ParallelPlan
from nemo_vfm.perf.memory import Memory
from nemo_vfm.perf.planner import Question

SMALLER, AGAIN, NARROW, OFFLOAD, NO_AVERAGE = (
    "parallel.microbatches", "engine.recompute=blocks", "precision=bf16", "engine.offload_optimizer=true", "~ema",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Way:
    """Changes of a recipe, and what comes of them.

    Args:
        changes: which; none is the recipe as it is.
        microbatches: of each device.
        memory: of the fullest device.
        step_s: seconds of a step.
        fits: whether the GPU has so much.
    """

    changes: tuple[str, ...]
    microbatches: int
    memory: Memory
    step_s: float
    fits: bool

    def words(self) -> list[str]:
        """The changes as a command line takes them."""
        return [f"{SMALLER}={self.microbatches}" if change == SMALLER else change for change in self.changes]


@dataclass(frozen=True, slots=True)
class State:
    """How a training would run on a layout.

    Args:
        plan: the layout.
        rows: samples of a device in a microbatch.
        recompute: whether blocks run again in backward.
    """

    plan: ParallelPlan
    rows: int
    recompute: bool


def ways(question: Question, state: State) -> list[Way]:
    """The layout as it is; then every smallest set of changes that makes it fit, the quickest first.

    Where all changes together do not suffice they are the last line.
    """
    as_it_is = _way(question, state, ())
    if as_it_is.fits:
        return [as_it_is]
    found: list[Way] = []
    levers = list(_levers(question, state))
    for changes in chain.from_iterable(combinations(levers, count) for count in range(1, len(levers) + 1)):
        if not any(set(one.changes) <= set(changes) for one in found):
            way = _way(question, state, changes)
            found += [way] if way.fits else []
    return [as_it_is, *(sorted(found, key=lambda way: way.step_s) or [_way(question, state, tuple(levers))])]


def enough_gpus(question: Question, most: int = 4096) -> int | None:
    """The smallest power of two of GPUs over which shared weights would fit, with a sample on each; None beyond."""
    gpus = 1
    while gpus <= most:
        asked = replace(question, subject=replace(question.subject, batch=gpus))
        if any(_way(asked, State(ParallelPlan(shard=gpus), 1, again), ()).fits for again in (False, True)):
            return gpus
        gpus *= 2
    return None


def _levers(question: Question, state: State) -> Iterator[str]:
    if state.rows > 1:
        yield SMALLER
    if not state.recompute:
        yield AGAIN
    if question.precision == "fp32":
        yield NARROW
    if not question.offload:
        yield OFFLOAD
    if question.average:
        yield NO_AVERAGE


def _way(question: Question, state: State, changes: tuple[str, ...]) -> Way:
    changed = replace(
        question, precision="bf16" if NARROW in changes else question.precision,
        offload=question.offload or OFFLOAD in changes, average=question.average and NO_AVERAGE not in changes,
    )  # fmt: skip
    rows, again = 1 if SMALLER in changes else state.rows, state.recompute or AGAIN in changes
    plan = replace(state.plan, microbatches=max(1, question.subject.batch // state.plan.data // rows))
    needed = changed.memory(plan, rows, again)
    time = changed.clock().step(plan, rows, recompute=again, offload=changed.offload)
    return Way(changes, plan.microbatches, needed, time.total, changed.fits(needed))
