"""Divides one training into phases that differ in steps, devices, batches, blend or learning rate.

Batch sizes may ramp up with the number of devices (Nemotron-4, 2406.11704, table 2), and data may change near the end.
All phases are one training: one run folder, step count and optimizer state, resharded between phases.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.training_data import ResumablePhases, TrainingData
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.train.state.slots import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of a training.

    Args:
        duration: its own length, in tokens, samples or steps; whole steps, rounded up.
        batch_size: samples of a global batch; None keeps the data's.
        blend: weights of the data's sources, by name; None keeps the data's.
        parallel: which devices share the work; None keeps the training's.
        schedule: moves the learning rate from this phase's first step to its last; None uses the training's
            schedule, which spans all phases that have none.
    """

    duration: Duration
    batch_size: int | None = None
    blend: Mapping[str, float] | None = None
    parallel: ParallelPlan | None = None
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if self.duration.unit not in ("tokens", "samples", "steps"):
            raise ValueError(f"a phase's duration must be in tokens, samples or steps, got {self.duration}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")

    def steps(self, data: TrainingData) -> int:
        """Of the optimizer. ValueError if the data does not say how many tokens or samples a step takes."""
        if self.duration.unit != "steps" and not isinstance(data, ResumablePhases):
            raise ValueError(f"{type(data).__name__} does not define how much a step reads; give the phase's "
                             f"duration in steps")  # fmt: skip
        known = (
            {"samples": self.batch_size or data.samples_per_batch(), "tokens": data.tokens_per_sample()}
            if isinstance(data, ResumablePhases) else {}
        )  # fmt: skip
        steps = self.duration.steps(**known)
        assert steps is not None, "only these units are accepted"
        return steps


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase among the others.

    Args:
        name: of the phase.
        phase: see there.
        first: the number of its first step, from 0.
        last: that of the first step after it.
        end: the same, or where the training is cut short.
        plan: its devices.
    """

    name: str
    phase: Phase
    first: int
    last: int
    end: int
    plan: ParallelPlan

    def __str__(self) -> str:
        batch = f", batches of {self.phase.batch_size:,}" if self.phase.batch_size else ""
        return f"phase {self.name}: steps {self.first + 1:,} to {self.end:,} on {self.plan.world:,} devices{batch}"


def stretches(
    phases: Mapping[str, Phase], data: TrainingData, plan: ParallelPlan, most: Duration | None = None
) -> list[PhaseSpan]:  # fmt: skip
    """The phases one after the other, the last ones cut off after `most` steps; `plan` is of those that have none.

    Raises:
        ValueError: see `Phase.steps`, or one wants what the data cannot give.
    """
    for name, phase in phases.items():
        if (phase.batch_size or phase.blend) and not isinstance(data, ResumablePhases):
            raise ValueError(f"phase {name} changes batch_size or blend, but {type(data).__name__} cannot: only the "
                             f"layout, the length and the learning rate can differ between its phases")  # fmt: skip
    ends = list(itertools.accumulate((phase.steps(data) for phase in phases.values()), initial=0))
    cut = math.inf if most is None else most.amount
    return [
        PhaseSpan(name, phase, first, last, last if cut >= last else math.ceil(cut), phase.parallel or plan)
        for (name, phase), first, last in zip(phases.items(), ends, ends[1:], strict=False)
        if first < cut
    ]


def at(ahead: Sequence[PhaseSpan], step: int) -> PhaseSpan:
    """The phase of step `step`, from 0; at the end, the last."""
    return next((one for one in ahead if step < one.end), ahead[-1])


@no_component
class InPhases:
    """The learning rate of every step of every phase.

    Args:
        all_phases: in order.
        common: of those without a schedule of their own, which lie one after the other for it.
    """

    def __init__(self, all_phases: Sequence[PhaseSpan], common: Schedule) -> None:
        self._phases, self._common = all_phases, common
        self._length = sum(one.last - one.first for one in all_phases if one.phase.schedule is None)

    def factor(self, step: int, total_steps: int | None) -> float:
        """See `Schedule`; the length of a phase is known, so `total_steps` says nothing."""
        here = at(self._phases, step)
        if here.phase.schedule is not None:
            return here.phase.schedule.factor(step - here.first, here.last - here.first)
        apart = sum(one.last - one.first for one in self._phases if one.phase.schedule and one.last <= here.first)
        return self._common.factor(step - apart, self._length)


def data_of(data: TrainingData, ahead: Sequence[PhaseSpan], here: PhaseSpan, seed: int) -> TrainingData:
    """The data of one phase: it continues in each source where the phases before stopped."""
    alike = all(one.phase.batch_size is None and one.phase.blend is None for one in ahead)
    if alike or not isinstance(data, ResumablePhases):
        return data
    read: Mapping[str, int] = {}
    for one in ahead:
        own = data.in_phase(batch_size=one.phase.batch_size, blend=one.phase.blend, read=read)
        if one is here:
            break
        read = own.read_after(one.last - one.first, seed=seed)
    return own.starting(here.first, read)
