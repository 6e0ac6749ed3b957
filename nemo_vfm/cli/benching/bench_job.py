"""Wraps the one training, sampling or generating step of a recipe as a job that measures it and keeps nothing."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_vfm.core import ranks
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.job import Job, MultiRankJob, Needs, Outcome, Run, needs_of
from nemo_vfm.core.types.json_value import Json

if TYPE_CHECKING:
    from nemo_vfm.perf.step_watch import StepFigures

TRAIN = "nemo_vfm.train.job.Train"
#: Classes of what can be measured.
MEASURED = (TRAIN, "nemo_vfm.synth.sample_videos.Sample", "nemo_vfm.synth.generate_texts.Generate")
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
    """Measures a training, or how quickly a job samples or generates.

    Args:
        job: the recipe's, in which it is.
        settings: how.
    """

    def __init__(self, job: Job, settings: BenchSettings) -> None:
        from nemo_vfm.train.job import Train
        from nemo_vfm.workflow import Workflow

        found = job.job_in(*settings.step) if isinstance(job, Workflow) and settings.step else job
        self.training = found if isinstance(found, Train) else None  #: None where it samples or generates
        self._job = found
        self.settings = settings

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`: those of the training's first phase, or one device."""
        if self.settings.alone:
            return Needs()
        return needs_of(self._job, num_gpus=num_gpus, folder=folder)

    def require(self, num_ranks: int) -> None:
        """See `MultiRankJob`."""
        if self.settings.alone and num_ranks > 1:
            raise ValueError(f"--gpus 1 measures one device, but {num_ranks} processes were started")
        if not self.settings.alone and isinstance(self._job, MultiRankJob):
            self._job.require(num_ranks)

    def run(self, run: Run) -> Outcome:
        """Measure, and leave the figures of the first rank in `bench.json`."""
        asked = self.settings
        how = {"steps": asked.steps, "warm_up": asked.warm_up}
        if self.training is not None:
            from nemo_vfm.train.measure_steps import measure_steps

            found = measure_steps(self.training, run, **how, profiled=asked.profiled, alone=asked.alone)
        else:
            from nemo_vfm.parallel.plan.sampling_plan import SamplingPlan
            from nemo_vfm.synth.measure_sampling import measure_sampling
            from nemo_vfm.synth.sample_videos import Sample

            job: Any = self._job
            if asked.alone and isinstance(job, Sample):
                job.parallel = SamplingPlan()
            found = measure_sampling(job, run, **how, profiled=asked.profiled)
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


def step_to_measure(kinds: Mapping[tuple[str, ...], str], wanted: str | None, recipe: str) -> tuple[str, ...]:
    """The names that lead to what is measured: the one training, else the one that samples or generates.

    Args:
        kinds: `MEASURED` of each such step, by the names that lead to it; none where it is the recipe itself.
        wanted: the one that the user names.
        recipe: for messages.

    Raises:
        UserError: there is none, several and none is named, or none of this name.
    """
    trainings = {names: kind for names, kind in kinds.items() if kind == TRAIN}
    names = {".".join(names): names for names in (kinds if wanted is not None else trainings or kinds)}
    if wanted is not None:
        if wanted not in names:
            known = ", ".join(filter(None, names)) or "one that is the recipe itself; drop --step"
            raise UserError(f"--step {wanted}: {recipe} has nothing of this name to measure, only {known}")
        return names[wanted]
    if not names:
        raise UserError(f"{recipe} neither trains nor samples nor generates texts, so there is nothing to measure; "
                        f"give a recipe with one of {', '.join(MEASURED)}")  # fmt: skip
    if len(names) > 1:
        does = "trains" if trainings else "samples or generates"
        raise UserError(f"{recipe} {does} in {len(names)} steps; name one: --step {' or --step '.join(names)}")
    return next(iter(names.values()))
