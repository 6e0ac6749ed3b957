"""Says how long a training lasts, in which phases, and when it is saved and validated."""

from collections.abc import Mapping
from dataclasses import dataclass

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.types.task import Task
from nemo_vfm.core.types.training_data import ResumableData, ResumablePhases, TrainingData
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.callbacks.validation import Validate
from nemo_vfm.train.phases import Phase, PhaseSpan, stretches


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The course of a training.

    Args:
        duration: length of the whole run, such as "400 steps", "2 epochs" or, of text, "3e9 tokens"; "90 s" ends by
            the clock, and such a run is not reproducible. None where there are phases; a number of steps there ends
            them early, to try the first ones.
        phases: stretches that differ in devices, batches, blend or learning rate, by name, in order; None is one.
        checkpoint: when checkpoints are written.
        validation: when the held-out loss is measured; None never.
    """

    duration: Duration | None = None
    phases: Mapping[str, Phase] | None = None
    checkpoint: SaveCheckpoints
    validation: Validate | None = None

    def __post_init__(self) -> None:
        duration, keep = self.duration, self.checkpoint.keep
        if duration is None and not self.phases:
            raise ValueError("give a duration, or phases with a duration each")
        if self.phases and duration is not None and duration.unit != "steps":
            raise ValueError(f"each phase has a duration, and the total can be limited only in steps, not {duration}")
        if keep.best and keep.metric.startswith("val_") and self.validation is None:
            raise ValueError(f"keep_best chooses by {keep.metric}, which is not measured: set validation")

    def require(self, data: TrainingData, task: Task) -> None:
        """Refuse data and a task that this length or validation does not fit, by a ValueError."""
        if self.duration is not None and self.duration.unit == "tokens" and not isinstance(data, ResumablePhases):
            raise ValueError(f"a duration in tokens ({self.duration}) has no meaning for {type(data).__name__}; "
                             f"give steps, epochs or samples")  # fmt: skip
        if self.validation is not None:
            self.validation.require(data, task)

    def spans(self, data: TrainingData, plan: ParallelPlan) -> list[PhaseSpan]:
        """The phases one after the other; see `stretches`."""
        return stretches(self.phases, data, plan, self.duration) if self.phases else []

    def length(self, data: TrainingData) -> tuple[int | None, float | None]:
        """(steps, None) or (None, seconds) of a training without phases."""
        assert self.duration is not None
        amount, unit = self.duration.amount, self.duration.unit
        if unit in ("s", "h"):
            return None, amount * (3600 if unit == "h" else 1)
        if unit == "steps":
            return self.duration.steps(), None
        if isinstance(data, ResumableData) and data.begins():
            from nemo_vfm.train.state.data_position import steps_until

            return steps_until(data, self.duration), None
        if unit == "epochs":
            return Duration(amount * data.batches_per_epoch(), "steps").steps(), None
        if isinstance(data, ResumablePhases):
            return self.duration.steps(samples=data.samples_per_batch(), tokens=data.tokens_per_sample()), None
        # A stream that was never read to its end cannot say it.
        return self.duration.steps(samples=data.num_train_samples() / data.batches_per_epoch()), None
