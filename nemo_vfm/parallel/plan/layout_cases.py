"""Lists the parallel layouts of a number of ranks: all of them, or few in which every two choices meet once.

Mistakes in layouts mostly need two things at once (a gradient that FSDP averages and a tensor split sums). So a
selection in which every pair of choices occurs finds nearly what all of them would. Arithmetic, without torch.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_vfm.parallel.plan.plan import AXES, ParallelPlan

Degrees = Mapping[str, Any]
_PIPELINES: tuple[Degrees, ...] = (
    {"schedule": "1f1b"}, {"schedule": "interleaved", "virtual": 2}, {"schedule": "zero_bubble", "virtual": 2},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayoutCase:
    """One row of a parity table."""

    degrees: Degrees  #: arguments of a `ParallelPlan` that are not its defaults
    packed: bool = False  #: samples of different sizes one after another, in the place of samples of one size

    def plan(self) -> ParallelPlan:
        """The plan."""
        return ParallelPlan(**self.degrees)

    def choices(self) -> frozenset[tuple[str, object]]:
        """What it takes, choice by choice; what follows from another choice is none."""
        plan = self.plan()
        found = {name: value for name, value in self.degrees.items() if name not in ("virtual", "ulysses")}
        if plan.tensor > 1:
            found["sequence"] = plan.sequence
        if plan.pipeline > 1:
            del found["microbatches"]
        return frozenset([*found.items(), ("packed", self.packed)])

    def order(self) -> tuple[object, ...]:
        """Where it stands among others in a table: plain ones first, by axis."""
        plan = self.plan()
        return sum(size > 1 for size in plan.sizes), [-size for size in plan.sizes], str(self)

    def __str__(self) -> str:
        how = {"tensor": "sequence" if self.degrees.get("sequence") else "", "context": self.degrees.get("attention"),
               "pipeline": self.degrees.get("schedule")}  # fmt: skip
        terms = [
            f"{name} {size} {(how.get(name) or '').replace('_', '-')}".rstrip()
            for name, size in self.degrees.items()
            if name in AXES
        ]
        if "pipeline" not in self.degrees and "microbatches" in self.degrees:
            terms.append(f"in {self.degrees['microbatches']} parts")
        return ", ".join(terms + ["packed"] * self.packed) or "one device"


def all_layouts(ranks: int, *, samples: int, stages: int) -> list[LayoutCase]:
    """Every layout of exactly so many ranks that can divide the samples, with a pipeline of at most so many stages."""
    found = []
    for sizes in itertools.product([one for one in range(1, ranks + 1) if ranks % one == 0], repeat=len(AXES)):
        if math.prod(sizes) != ranks:
            continue
        degrees = {name: size for name, size in zip(AXES, sizes, strict=True) if size > 1}
        # With each way to do what these degrees leave open.
        sequences: list[Degrees] = [{}, {"sequence": True}] if "tensor" in degrees else [{}]
        context, pipeline = degrees.get("context", 1), degrees.get("pipeline", 1)
        attentions: list[Degrees] = [{"attention": name} for name in ("ring", "all_gather", "ulysses") if context > 1]
        if context >= 4:
            attentions.append({"attention": "ring_ulysses", "ulysses": 2})
        cuts: list[Degrees] = [{}, {"microbatches": 2}]
        if pipeline > 1:
            cuts = [{"microbatches": pipeline, **one} for one in _PIPELINES]
        for more in itertools.product(sequences, attentions or [{}], cuts):
            one = {**degrees, **{name: value for each in more for name, value in each.items()}}
            found += [LayoutCase(one, packed) for packed in (False, True)]
    found = [one for one in found if one.plan().stages <= stages]
    # Packed samples are of two sizes in turns, and a pipeline's parts must be alike: each needs one of both.
    return [one for one in found if samples % (one.plan().data * one.plan().microbatches * (1 + one.packed)) == 0]


def selection(layouts: Sequence[LayoutCase], *, together: int) -> list[LayoutCase]:
    """Few of them, in which every `together` choices that occur together at all occur together at least once.

    Greedily: the one that shows most that is new comes next. The same layouts give the same selection.
    """
    shown = {
        place: set(itertools.combinations(sorted(one.choices(), key=str), together))
        for place, one in enumerate(layouts)
    }
    missing, chosen = set().union(*shown.values()), []
    while missing:
        best = max(shown, key=lambda place: len(shown[place] & missing))
        chosen.append(layouts[best])
        missing -= shown.pop(best)
    return chosen
