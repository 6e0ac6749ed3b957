"""Watches the steps of any work: their time, the memory at the fullest moment of one, and what the time goes to."""

import gc
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from nemo_vfm.core.device import StepTimer, describe, device, forget_peak, peak_bytes, synchronize
from nemo_vfm.perf.step_kinds import Kind, step_kinds, work_of

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
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)  #: of the model's inputs

    @property
    def step_s(self) -> float:
        """The median."""
        return statistics.median(self.steps_s)


class StepWatch:
    """Is told of each step: those of a warm-up, those that are timed, some whose memory is seen, and the profiled.

    Args:
        warm_up: steps that are not timed, at least 1.
        steps: that are.
        profiled: whether the time of further ones is divided by kinds.
    """

    def __init__(self, *, warm_up: int, steps: int, profiled: bool) -> None:
        self._warm_up, self._steps, self._profiled = warm_up, steps, profiled
        self.total = warm_up + steps + _WATCHED + (_PROFILED if profiled else 0)  #: steps that it takes
        self._timer = StepTimer()
        self._running: profile | None = None
        self._standing = self._most = 0
        self._before = 0 if device().type == "cuda" else standing_bytes()  # of what this process did earlier
        self._window = (0, 0)
        self._began, self._first_s = time.perf_counter(), 0.0

    def begin(self) -> None:
        """The first step begins here."""
        self._began = time.perf_counter()

    def is_timed(self, number: int) -> bool:
        """Whether step `number`, counted from 1, is one of those that are timed."""
        return self._warm_up < number <= self._warm_up + self._steps

    def done(self, number: int) -> bool:
        """Step `number` is; whether it was the last."""
        if number == 1:
            synchronize()
            self._first_s = time.perf_counter() - self._began
        if number == self._warm_up:
            forget_peak()
        if self._warm_up <= number <= self._warm_up + self._steps:
            self._timer.mark()
        if number == self._warm_up + self._steps:
            self._most = peak_bytes() or 0
            if not self._most:
                self._profile(memory=True)
        elif number == self._warm_up + self._steps + 1:
            self._standing, self._window = 0 if self._most else standing_bytes() - self._before, (time.time_ns(), 0)
        elif number == self._warm_up + self._steps + _WATCHED:
            if self._running is not None:
                self._most = self._end_of_memory()
            if self._profiled:
                self._profile(memory=False)
        elif number == self.total and self._running is not None:
            synchronize()
            self._running.stop()
            self._window = self._window[0], time.time_ns()
        return number >= self.total

    def figures(self, start: Mapping[str, float]) -> StepFigures:
        """Time, memory and kinds; `start` has the seconds of what came before the first step."""
        found = StepFigures(describe(), self._timer.seconds(), peak_bytes=self._most)
        parts = {**start, "first step": self._first_s}
        found.start_s = {name: seconds for name, seconds in parts.items() if seconds >= 0.0005}
        if self._profiled and self._running is not None:
            events = _events(self._running)
            host = [one for one in events if one.device_type() == DeviceType.CPU and one.name() != "[memory]"]
            # Some ranges are shown on the device, too, where they are no work.
            named = {one.name() for one in host}
            kernels = [one for one in events if one.device_type() == DeviceType.CUDA and one.name() not in named]
            kinds = step_kinds(work_of(host, kernels), *self._window, nested=not kernels)
            # Profiling costs time of its own: what is told is each kind's share of the step that was timed without.
            scale = found.step_s / sum(kinds.seconds.values())
            found.kinds_s = {kind: seconds * scale for kind, seconds in kinds.seconds.items()}
            found.largest = [(name, kind, seconds * scale) for name, kind, seconds in kinds.largest]
        return found

    def _profile(self, *, memory: bool) -> None:
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
