"""Wraps the one training of a recipe as a job that measures its steps and keeps nothing."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.core import ranks
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.job import Job, Needs, Outcome, Run, needs_of
from nemo_vfm.core.types.json_value import Json

if TYPE_CHECKING:
    from nemo_vfm.train.measure_steps import StepFigures

#: What a bench leaves in its folder, for the process that shows it.
FIGURES = "bench.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """How it is measured."""

    step: tuple[str, ...]  #: names of the steps that lead to the training; none where it is the recipe
    steps: int  #: that are timed
    warm_up: int  #: that are taken before
    profiled: bool  #: whether their time is divided by kinds of work
    alone: bool  #: whether one device measures its share


@no_component
class BenchJob:
    """Measures a training.

    Args:
        job: the recipe's, in which it is.
        settings: how.
    """

    def __init__(self, job: Job, settings: BenchSettings) -> None:
        from nemo_vfm.train.job import Train
        from nemo_vfm.workflow import Workflow

        found = job.job_in(*settings.step) if isinstance(job, Workflow) and settings.step else job
        assert isinstance(found, Train), "only a training is measured"
        self.training: Train = found
        self.settings = settings

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`: those of the training's first phase, or one device."""
        if self.settings.alone:
            return Needs()
        return needs_of(self.training, num_gpus=num_gpus, folder=folder)

    def require(self, num_ranks: int) -> None:
        """See `MultiRankJob`."""
        if self.settings.alone and num_ranks > 1:
            raise ValueError(f"--gpus 1 measures one device, but {num_ranks} processes were started")
        if not self.settings.alone:
            self.training.require(num_ranks)

    def run(self, run: Run) -> Outcome:
        """Measure, and leave the figures of the first rank in `bench.json`."""
        from nemo_vfm.train.measure_steps import measure_steps

        asked = self.settings
        found = measure_steps(self.training, run, steps=asked.steps, warm_up=asked.warm_up, profiled=asked.profiled,
                              alone=asked.alone)  # fmt: skip
        if ranks.is_first():
            write_json(run.folder / FIGURES, record(found))
        return Outcome(f"measured {asked.steps} steps of {found.step_s:.4g} s", {"step_s": found.step_s})


def record(found: "StepFigures") -> Json:
    """The figures as `--json` writes them."""
    step_s, steps = found.step_s, sorted(found.steps_s)
    quarters = statistics.quantiles(steps, n=4) if len(steps) > 1 else [step_s] * 3
    return {
        "step_s": step_s,
        "spread_s": [quarters[0], quarters[2]],
        "steps": len(steps),
        "kinds_s": dict(found.kinds_s),
        "largest": [{"name": name, "kind": kind, "s": seconds} for name, kind, seconds in found.largest],
        "samples_per_s": found.samples / step_s,
        "tokens_per_s": found.tokens / step_s if found.tokens else None,
        "mfu": found.mfu, "hfu": found.hfu, "peak": found.peak or None,
        "peak_bytes": found.peak_bytes, "planned_bytes": None,
        "start_s": sum(found.start_s.values()), "start_parts_s": dict(found.start_s),
        "parameters": found.parameters, "loss": found.loss if math.isfinite(found.loss) else None,
        "inputs": {name: list(shape) for name, shape in found.shapes.items()},
        "device": found.device, "devices": ranks.count(),
    }  # fmt: skip


def training_in(steps: Mapping[tuple[str, ...], object], wanted: str | None, recipe: str) -> tuple[str, ...]:
    """The names that lead to the training that is measured, of those there are.

    Raises:
        UserError: there is none, several and none is named, or none of this name.
    """
    names = {".".join(names): names for names in steps}
    if wanted is not None:
        if wanted not in names:
            known = ", ".join(filter(None, names)) or "one that is the recipe itself; drop --step"
            raise UserError(f"--step {wanted}: {recipe} has no training of this name, only {known}")
        return names[wanted]
    if not names:
        raise UserError(f"{recipe} trains nothing, and only trainings can be measured; give a recipe with a step "
                        f"nemo_vfm.train.job.Train")  # fmt: skip
    if len(names) > 1:
        raise UserError(f"{recipe} trains in {len(names)} steps; name one: --step {' or --step '.join(names)}")
    return next(iter(names.values()))
