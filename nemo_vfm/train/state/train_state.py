"""Takes optimizer steps, and holds the state that callbacks see and checkpoints keep."""

import json
import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from torch import Tensor, nn

from nemo_vfm.core import log, preemption, ranks
from nemo_vfm.core.errors import CorruptCheckpoint
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.task import Task
from nemo_vfm.core.types.training_data import ResumableData, TrainingData
from nemo_vfm.parallel.checkpoint.checkpoint import Checkpoint
from nemo_vfm.parallel.engine.step_runner import StepResult, StepRunner
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.ranks.process_group import all_reduce_max
from nemo_vfm.train.state.data_position import DataProgress
from nemo_vfm.train.state.skip import Skip
from nemo_vfm.train.state.slots import Schedule


class Average(Protocol):
    """A running average of weights, as `EMA` keeps it."""

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of it."""
        ...

    def update(self, model: nn.Module, step: int) -> None:
        """After a step."""
        ...

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Of a checkpoint."""
        ...

    def replace(self, weights: Mapping[str, Tensor]) -> None:
        """Some of them."""
        ...

    def apply_to(self, model: nn.Module) -> AbstractContextManager[nn.Module]:
        """The model with the average for its weights."""
        ...


class Stateful(Protocol):
    """Something that a checkpoint keeps the state of."""

    def state_dict(self) -> Json:
        """To be kept."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Json]) -> None:
        """The inverse of `state_dict`."""
        ...


@dataclass(slots=True)
class TrainState:
    """One training run while it runs.

    Args:
        step: optimizer steps done; also the number of the next global batch.
        total_steps: where the run ends; None when it ends by the clock.
        limit_s: seconds of training after which it ends; None when it ends by steps.
        elapsed_s: seconds of training so far, earlier parts of a resumed run included.
        metrics: metrics of the current step; the next one clears them.
        origin: names this run in its checkpoints, over all resumes.
        started_from: where its first weights came from; None where they were drawn.
        plan: which devices share the work.
        end_wished: whether a callback of Lightning's asks this rank for an end.
        ended_early: whether one has asked any rank before this step, which is the last then.
        stateful: callbacks of Lightning's by name, whose state a checkpoint keeps.
        stop: above 0 where a signal asked for an end (`preempt.urgency`); every rank knows it at the same step.
        skip: what is left out.
        frozen: where the frozen models' weights came from, by name.
        adapters: what adapters are trained, as a checkpoint remembers it; None where the model itself is.
        reading: where the data began and how; None for data that is no `ResumableData`.
    """

    run: Run
    runner: StepRunner
    task: Task
    data: TrainingData
    schedule: Schedule
    ema: Average | None
    total_steps: int | None
    limit_s: float | None = None
    step: int = 0
    elapsed_s: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    result: StepResult | None = None
    origin: str = field(default_factory=lambda: uuid4().hex)
    started_from: Json | None = None
    plan: ParallelPlan = field(default_factory=ParallelPlan)
    stop: float = 0.0
    end_wished: bool = False
    ended_early: bool = False
    stateful: Mapping[str, Stateful] = field(default_factory=dict)
    skip: Skip = field(default_factory=Skip)
    adapters: Json = None
    frozen: Mapping[str, Json] = field(default_factory=dict)
    reading: DataProgress | None = None
    _clock: float = 0.0

    def start_clock(self) -> None:
        """Time counts from here."""
        self._clock = time.monotonic() - self.elapsed_s

    def advance(self, batch: Batch) -> None:
        """Take one optimizer step on one global batch."""
        assert batch.index == self.step, f"the loader returned batch {batch.index} at step {self.step}"
        is_skipped = self.step + 1 in self.skip.steps
        if is_skipped:  # it is counted, and nothing else; its metrics are gaps in the curves
            self.result = StepResult(math.nan, math.nan, math.nan, 0)
        else:
            # Without names nobody asks for the keys, which a batch of features has to make.
            self.result = self.runner.step([self.skip.zero_weights(batch) if self.skip.samples else batch])
        self.step += 1
        self.set_lr()
        if self.ema is not None and not is_skipped:
            self.ema.update(self.model, self.step)
        # Ranks agree on the time and on who asks for an end.
        elapsed_s, wished = time.monotonic() - self._clock, float(self.end_wished)
        self.elapsed_s, self.stop, early = all_reduce_max(elapsed_s, preemption.urgency(), wished)
        self.ended_early = early > 0
        figures = {"loss": self.result.loss, "grad_norm": self.result.grad_norm, "lr": self.result.lr}
        self.metrics = {"skipped": 1.0} if is_skipped else {**figures, **self.result.turns}

    def set_lr(self) -> None:
        """Set the learning rates of the coming step; after the last step there are none."""
        if not self.finished:
            self.runner.set_lr(self.schedule.factor(self.step, self.total_steps))

    @property
    def model(self) -> nn.Module:
        """This rank's part of what is trained."""
        return self.runner.model

    @property
    def preempted(self) -> bool:
        """Whether a signal asked for an end."""
        return self.stop > 0

    @property
    def ends(self) -> bool:
        """Whether no step follows this one."""
        return self.finished or self.preempted or self.ended_early

    @property
    def data_rank(self) -> int:
        """Which of `plan.data` slices of each global batch this process works on."""
        return self.plan.data_rank(ranks.rank()) if self.plan.world > 1 else 0

    @property
    def finished(self) -> bool:
        """Whether the run has reached its length."""
        if self.limit_s is not None:
            return self.elapsed_s >= self.limit_s
        return self.total_steps is not None and self.step >= self.total_steps

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go."""
        return self.run.folder / "checkpoints"

    def groups(self) -> dict[str, dict[str, Tensor]]:
        """All tensors a checkpoint needs."""
        averages = {} if self.ema is None else {"ema": self.ema.state()}
        return self.runner.tensors() | averages

    def state(self) -> Json:
        """All else a checkpoint needs. Batches and noise need only the step, unless the recipe's data changes."""
        more = {"total_steps": self.total_steps, "started_from": self.started_from, "skip": self.skip.state()}
        if self.adapters is not None:
            more["adapters"] = self.adapters
        if self.frozen:
            more["frozen"] = self.frozen
        if self.reading is not None and isinstance(self.data, ResumableData):
            more["data"] = self.reading.json(self.data, self.step)
        for name, one in self.stateful.items():
            try:
                state = one.state_dict()
                json.dumps(state)
            except (TypeError, ValueError):
                log.warn_once(f"callbacks.{name} has a state that is not JSON, so resuming will reset it")
                continue
            if state:
                more.setdefault("callbacks", {})[name] = state
        return {"step": self.step, "elapsed_s": self.elapsed_s, "seed": self.run.seed, **more}

    def load(self, saved: Checkpoint) -> None:
        """The inverse of `groups` and `state`.

        Raises:
            CorruptCheckpoint: it is of another model, or of another kind of job.
        """
        needed = {"model", *(one.group for one in self.runner.dense), *(["ema"] if self.ema else [])}
        lacking = needed - saved.groups.keys()
        if lacking or not isinstance(saved.state, dict) or saved.state.get("step") != saved.step:
            raise CorruptCheckpoint(
                f"The checkpoint of step {saved.step} does not hold a training's state"
                + (f": it lacks {', '.join(sorted(lacking))}." if lacking else ".")
            )
        self.runner.load(saved.groups)
        if self.ema is not None:
            self.ema.load(saved.groups["ema"])
        self.step, self.elapsed_s = saved.step, float(saved.state.get("elapsed_s", 0))
        for name, state in (saved.state.get("callbacks") or {}).items():
            if name in self.stateful:
                self.stateful[name].load_state_dict(state)
        self.origin, self.started_from = saved.run or self.origin, saved.state.get("started_from")

    def is_due(self, every_steps: int) -> bool:
        """Whether something that happens every N steps, and at the end, is due now."""
        return self.step % every_steps == 0 or self.finished or self.ended_early
