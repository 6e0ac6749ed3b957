"""Measures the steps of a training as a run takes them: time, throughput, memory, and what the time goes to."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile, record_function

from nemo_vfm.core import ranks
from nemo_vfm.core.device import StepTimer, describe, device, forget_peak, peak_bytes, synchronize
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.model_traits import ReportsFlops
from nemo_vfm.core.types.task import ModelInputs, Task
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf import flops
from nemo_vfm.perf.step_kinds import LOSS, Kind, step_kinds, work_of
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.phases import InPhases, at, data_of

if TYPE_CHECKING:
    from nemo_vfm.train.job import Train
    from nemo_vfm.train.state.train_state import TrainState

_WATCHED = 2  # steps in which memory is watched on a CPU
_PROFILED = 3  # steps; more make events of which nobody reads all


@dataclass(slots=True)
class StepFigures:
    """What was measured on this process."""

    device: str  #: what computed
    steps_s: Sequence[float] = ()  #: seconds of each step
    samples: float = 0.0  #: of a global batch, on average
    tokens: float = 0.0  #: of text in one; 0 where it has none
    mfu: float | None = None  #: the share of the peak, 0 to 1; None where the model does not say what it costs
    hfu: float | None = None  #: the same with the arithmetic that is repeated
    peak: str = ""  #: the peak that these are over
    peak_bytes: int | None = None  #: of tensors, at the fullest moment of a step
    start_s: Mapping[str, float] = field(default_factory=dict)  #: of each part of the start
    kinds_s: Mapping[Kind, float] = field(default_factory=dict)  #: seconds a step of each kind; empty unprofiled
    largest: Sequence[tuple[str, Kind, float]] = ()  #: the operations or kernels that take most, seconds a step
    loss: float = math.nan  #: of the last step
    parameters: int = 0  #: of the model
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)  #: of the model's inputs in a microbatch

    @property
    def step_s(self) -> float:
        """The median."""
        return statistics.median(self.steps_s)


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
    from nemo_vfm.train.loggers.run_logger import RunLogger
    from nemo_vfm.train.module import TrainModule
    from nemo_vfm.train.run_training import start
    from nemo_vfm.train.trainer import quiet_lightning, trainer

    clock = _StepClock(warm_up, steps, profiled, again=getattr(job.engine, "recompute", "none") != "none")
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
    total = warm_up + steps + _WATCHED + (_PROFILED if profiled else 0)
    here.callbacks, here.loggers, here.phases = {}, {}, []
    here.loop = Loop(duration=Duration(total, "steps"), checkpoint=SaveCheckpoints(every_steps=total))
    fit = start(here, run)
    parts["other"] = time.perf_counter() - began - sum(parts.values())
    fit.start_clock()
    clock.began = time.perf_counter()
    loop = trainer(fit, {}, {"clock": clock}, RunLogger([]))
    loop.fit(TrainModule(fit), datamodule=BatchModule(fit.data))
    found = clock.figures(fit)
    parts["first step"] = clock.first_s
    found.start_s = {name: seconds for name, seconds in parts.items() if seconds >= 0.0005}
    return found


class _StepClock:
    """A callback that takes the time, watches memory and profiles; see `measure_steps`."""

    def __init__(self, warm_up: int, steps: int, profiled: bool, *, again: bool) -> None:
        self._warm_up, self._steps, self._profiled, self._again = warm_up, steps, profiled, again
        self._timer = StepTimer()
        self._seen: list[tuple[float, float, float, float]] = []  # samples, tokens, FLOPs, and with repeated ones
        self._running: profile | None = None
        self._standing = self.most = 0
        self._before = 0 if device().type == "cuda" else standing_bytes()  # of what this process did earlier
        self._window = (0, 0)
        self.began, self.first_s = 0.0, 0.0

    def on_step(self, fit: "TrainState") -> None:
        """One after another: the steps of the warm-up, those that are timed, one whose memory is seen, the profiled."""
        done = fit.step
        if done == 1:
            synchronize()
            self.first_s = time.perf_counter() - self.began
        if done == self._warm_up:
            forget_peak()
        if self._warm_up <= done <= self._warm_up + self._steps:
            self._timer.mark()
            if done > self._warm_up:
                self._count(fit)
        if done == self._warm_up + self._steps:
            self.most = peak_bytes() or 0
            if not self.most:
                self._begin(memory=True)
        elif done == self._warm_up + self._steps + 1:
            self._standing, self._window = 0 if self.most else standing_bytes() - self._before, (time.time_ns(), 0)
        elif done == self._warm_up + self._steps + _WATCHED:
            if self._running is not None:
                self.most = self._end_of_memory()
            if self._profiled:
                self._begin(memory=False)
        elif fit.finished and self._running is not None:
            synchronize()
            self._running.stop()
            self._window = self._window[0], time.time_ns()

    def _count(self, fit: "TrainState") -> None:
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

    def _begin(self, *, memory: bool) -> None:
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device().type == "cuda" else [])]
        synchronize()
        self._running = profile(activities=kinds, profile_memory=memory)
        self._running.start()
        self._window = time.time_ns(), 0

    def _end_of_memory(self) -> int:
        """The most that stood during one step on a CPU: what stood before, and what came and went since then.

        The profiler says nothing of memory that is freed and was not seen to be asked for: the gradients of the step
        before. So it watches that step, too.
        """
        assert self._running is not None
        self._running.stop()
        events = _events(self._running)
        self._running, now, most = None, self._standing, self._standing
        for event in sorted((one for one in events if one.name() == "[memory]"), key=lambda one: one.start_ns()):
            if event.start_ns() >= self._window[0]:
                now += event.nbytes()
                most = max(most, now)
        return most

    def figures(self, fit: "TrainState") -> StepFigures:
        """All that was measured."""
        found = StepFigures(describe(), self._timer.seconds(), peak_bytes=self.most)
        samples, tokens, needed, done = (sum(column) / len(self._seen) for column in zip(*self._seen, strict=True))
        found.samples, found.tokens = samples, tokens
        found.parameters = sum(parameter.numel() for parameter in fit.model.parameters())
        assert fit.result is not None
        found.loss, found.shapes = (
            fit.result.loss,
            max(fit.result.shapes, key=lambda one: sum(map(math.prod, one.values()))),
        )
        if needed and ranks.is_first():
            peak = flops.peak_flops()
            found.peak = str(peak)
            found.mfu, found.hfu = (flops.mfu(one, found.step_s, peak) for one in (needed, done))
        if self._profiled and self._running is not None:
            events = _events(self._running)
            on_device = [one for one in events if one.device_type() == DeviceType.CUDA]
            host = [one for one in events if one.device_type() == DeviceType.CPU
                    and one.name() != "[memory]"]  # fmt: skip
            # Some ranges are shown on the device, too, where they are no work.
            named = {one.name() for one in host}
            kernels = [one for one in on_device if one.name() not in named]
            kinds = step_kinds(work_of(host, kernels), *self._window, nested=not kernels)
            # Profiling costs time of its own: what is told is each kind's share of the step that was timed without.
            scale = found.step_s / sum(kinds.seconds.values())
            found.kinds_s = {kind: seconds * scale for kind, seconds in kinds.seconds.items()}
            found.largest = [(name, kind, seconds * scale) for name, kind, seconds in kinds.largest]
        return found


def standing_bytes() -> int:
    """Bytes of all tensors on the CPU that Python holds, and of their gradients, each storage once."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if issubclass(type(one), Tensor)]
    tensors += [one.grad for one in tensors if one.is_leaf and one.grad is not None]
    storages = {}
    for one in tensors:
        if one.device.type == "cpu" and one.layout == torch.strided:
            storage = one.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def _events(of: profile) -> Sequence[Any]:
    assert of.profiler is not None and of.profiler.kineto_results is not None
    events: Sequence[Any] = of.profiler.kineto_results.events()
    return events


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
