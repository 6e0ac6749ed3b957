"""Refuses batches and sequences that the ranks of a plan cannot share evenly."""

import math
from collections.abc import Iterator, Mapping, Sequence

from nemo_vfm.core.types.component import PartRefused
from nemo_vfm.core.types.training_data import HasBatchSizes, ResumablePhases, TrainingData
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.train.phases import PhaseSpan

Address = tuple[str, ...]


def require_even(data: TrainingData, plan: ParallelPlan, phases: Sequence[PhaseSpan]) -> None:
    """Refuse what no rank could start with; every number is known from the recipe.

    Raises:
        PartRefused: at the place of the first.
    """
    sizes = data.batch_sizes() if isinstance(data, HasBatchSizes) else {}
    wrong: list[tuple[Address, str]] = []
    if not phases:
        wrong += [(("data", *name.split(".")), text) for name, text in _uneven_sizes(sizes, plan)]
    for phase in phases:
        place = ("loop", "phases", phase.name)
        if (size := phase.phase.batch_size) is None:
            wrong += [(place, f"phase {phase.name}: {text}") for _, text in _uneven_sizes(sizes, phase.plan)]
        else:
            own = {f"batch_size of phase {phase.name}": size}
            wrong += [((*place, "batch_size"), text) for _, text in _uneven_sizes(own, phase.plan)]
    if isinstance(data, ResumablePhases):
        plans = dict.fromkeys(phase.plan for phase in phases) or [plan]
        tokens = data.tokens_per_sample()
        for one in plans:
            # Of a text each context rank has an early and a late chunk, both of one length.
            unit = math.lcm(one.tokens, 2 * one.context if one.context > 1 else 1)
            if tokens % unit:
                split = f" x tensor {one.tensor}" if one.sequence else ""
                text = (f"sequences of {tokens} tokens cannot be divided among {one.tokens} ranks (parallel.context "
                        f"{one.context}{split}); {_nearest_multiples(tokens, unit)} would fit")  # fmt: skip
                wrong.append((("data", "sequence_length"), text))
    if wrong:
        raise PartRefused("; ".join(text for _, text in wrong), *wrong[0][0])


def _uneven_sizes(sizes: Mapping[str, int], plan: ParallelPlan) -> Iterator[tuple[str, str]]:
    for name, size in sizes.items():
        # Packs are cut into microbatches wherever samples end; only a pipeline needs these of equal size.
        parts = plan.microbatches if plan.pipeline > 1 and not name.endswith("packs") else 1
        if size % (plan.data * parts):
            in_parts = f", in parallel.microbatches = {parts} each" if parts > 1 else ""
            yield name, (f"{name} {size} cannot be divided among {plan.data} data ranks (parallel.replicate "
                         f"{plan.replicate} x shard {plan.shard}){in_parts}; "
                         f"{_nearest_multiples(size, plan.data * parts)} would fit")  # fmt: skip


def _nearest_multiples(size: int, unit: int) -> str:
    """The multiples of `unit` next to it."""
    below = size // unit * unit
    return f"{below} or {below + unit}" if below else str(unit)
