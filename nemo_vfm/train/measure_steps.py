"""Measures the steps of a training as a run takes them."""

import math
import time
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.profiler import record_function

from nemo_vfm.core import ranks
from nemo_vfm.core.device import synchronize
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.model_traits import ReportsFlops
from nemo_vfm.core.types.task import ModelInputs, Task
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf import flops
from nemo_vfm.perf.step_kinds import LOSS
from nemo_vfm.perf.step_watch import StepFigures, StepWatch
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.phases import InPhases, at, data_of

if TYPE_CHECKING:
    from nemo_vfm.train.job import Train
    from nemo_vfm.train.state.train_state import TrainState


def measure_steps(
    job: "Train", run: Run, *, steps: int, warm_up: int, profiled: bool, alone: bool = False
) -> StepFigures:  # fmt: skip
    """Take steps as `run` does, in Lightning's loop, without checkpoints, validation and callbacks of the recipe.

    Args:
        job: the training; of several phases the first is measured.
        run: with a folder of its own, where nothing is kept.
        steps: that are timed, after `warm_up` others.
        profiled: whether the time of further steps is divided by kinds.
        alone: whether one device takes its share of each batch, and all of the model, whatever the layout is.
    """
    from nemo_vfm.data.loader.lightning_data import BatchModule
    from nemo_vfm.models.convert.video.random_pipeline import prepare_base
    from nemo_vfm.train.job import start
    from nemo_vfm.train.loggers.run_logger import RunLogger
    from nemo_vfm.train.module import TrainModule
    from nemo_vfm.train.trainer import quiet_lightning, trainer

    watch = StepWatch(warm_up=warm_up, steps=steps, profiled=profiled)
    clock = _Counts(watch, again=getattr(job.engine, "recompute", "none") != "none")
    began, here, parts = time.perf_counter(), copy(job), dict[str, float]()
    prepare_base(job.base, job.random_base, run.folder)
    quiet_lightning()
    data = job.data
    if job.phases:
        phase = at(job.phases, 0)
        here.parallel, data = phase.plan, data_of(job.data, job.phases, phase, run.seed)
        here.schedule = InPhases(job.phases, job.schedule)
    here.engine, here.data, share = copy(job.engine), copy(data), {}
    if alone:
        share = {"rank": 0, "num_ranks": here.parallel.data}
        here.parallel = ParallelPlan(microbatches=here.parallel.microbatches)
    # Instances whose calls are timed, and a task whose losses a profile can tell from the rest.
    data_start = here.data.start
    vars(here.engine)["start"] = _timed("model", here.engine.start, parts)
    vars(here.data)["start"] = _timed("data", lambda **given: data_start(**{**given, **share}), parts)
    here.task = copy(job.task)
    object.__setattr__(here.task, "losses", _marked(job.task))
    here.callbacks, here.loggers, here.phases = {}, {}, []
    here.loop = Loop(duration=Duration(watch.total, "steps"), checkpoint=SaveCheckpoints(every_steps=watch.total))
    fit = start(here, run)
    parts["other"] = time.perf_counter() - began - sum(parts.values())
    fit.start_clock()
    watch.begin()
    loop = trainer(fit, {}, {"clock": clock}, RunLogger([]))
    loop.fit(TrainModule(fit), datamodule=BatchModule(fit.data))
    return clock.figures(fit, watch.figures(parts))


class _Counts:
    """A callback that tells the watch of each step, and counts what those that are timed did."""

    def __init__(self, watch: StepWatch, *, again: bool) -> None:
        self._watch, self._again = watch, again
        self._seen: list[tuple[float, float, float, float]] = []  # samples, tokens, FLOPs, and with repeated ones

    def on_step(self, fit: "TrainState") -> None:
        """See `StepWatch.done`."""
        self._watch.done(fit.step)
        if not self._watch.is_timed(fit.step):
            return
        from nemo_vfm.parallel.apply.frozen_weights import only_adapters_learn

        result, model = fit.result, fit.model
        assert result is not None
        needed = repeated = 0.0
        if isinstance(model, ReportsFlops):
            frozen = only_adapters_learn(model)
            for shapes in result.shapes:
                ops = model.ops(shapes)
                needed += flops.training_flops(ops, frozen=frozen)
                repeated += flops.recomputed_flops(ops) if self._again else 0.0
            share = fit.plan.data / fit.plan.world  # the ranks of one slice share its arithmetic
            needed, repeated = needed * share, repeated * share
        texts = (math.prod(shapes["tokens_BS"]) for shapes in result.shapes if "tokens_BS" in shapes)
        self._seen.append((result.num_samples, sum(texts) * fit.plan.data, needed, needed + repeated))

    def figures(self, fit: "TrainState", found: StepFigures) -> StepFigures:
        """What was measured, with what was counted."""
        samples, tokens, needed, done = (sum(column) / len(self._seen) for column in zip(*self._seen, strict=True))
        found.samples, found.tokens = samples, tokens
        found.parameters = sum(parameter.numel() for parameter in fit.model.parameters())
        assert fit.result is not None
        found.loss = fit.result.loss
        found.shapes = max(fit.result.shapes, key=lambda one: sum(map(math.prod, one.values())))
        if needed and ranks.is_first():
            peak = flops.peak_flops()
            found.peak = str(peak)
            found.mfu, found.hfu = (flops.mfu(one, found.step_s, peak) for one in (needed, done))
        return found


def _marked(task: Task) -> Callable[[Tensor, ModelInputs], Tensor]:
    """The task's losses, in a range that a profile shows."""

    def marked(output: Tensor, prepared: ModelInputs) -> Tensor:
        with record_function(LOSS):
            return task.losses(output, prepared)

    return marked


def _timed(name: str, call: Any, parts: dict[str, float]) -> Any:
    """The same call, whose time is added to its part of the start."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            synchronize()
            parts[name] = parts.get(name, 0.0) + time.perf_counter() - began

    return timed
