"""Measures training samples by the scores that they get before the model learns from them."""

import math

from safetensors.torch import load, save

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.task import Contribution, HasValidationMetrics, ModelInputs
from nemo_vfm.parallel.ranks.process_group import everyone_sends
from nemo_vfm.train.state.train_state import TrainState
from nemo_vfm.train.state.validation_batches import speaks_for_slice


class StreamMetrics:
    """Adds the task's metrics, of `Click` AUC, normalised entropy and calibration, of the last steps' own samples.

    In the first epoch each sample is new to the model, so these are honest without any held-out data. They are called
    `stream_auc` and so on. A window that a resume cuts is not measured. On a GPU each step waits for its scores.

    Args:
        window_steps: optimizer steps that are measured together, one window after another.
    """

    def __init__(self, *, window_steps: int = 100) -> None:
        if window_steps < 1:
            raise ValueError(f"window_steps must be at least 1, got {window_steps}")
        self.window_steps = window_steps
        self._counted: Contribution | None = None
        self._begun = 0

    def on_start(self, fit: TrainState) -> None:
        """Ask for scores. UserError if the task gives none."""
        task = fit.task
        if not isinstance(task, HasValidationMetrics):
            raise UserError(f"{type(task).__name__} scores no training samples; remove this callback, or use a task "
                            f"such as nemo_vfm.recsys.click.Click")  # fmt: skip

        def count(prepared: ModelInputs) -> None:
            new = task.contribution(prepared)
            self._counted = new if self._counted is None else task.merge([self._counted, new])

        fit.runner.on_scores, self._counted, self._begun = count, None, fit.step

    def on_step(self, fit: TrainState) -> None:
        """Measure where a window ends."""
        if fit.step % self.window_steps:
            return
        task, counted, self._counted = fit.task, self._counted, None
        whole, self._begun = fit.step - self._begun == self.window_steps, fit.step
        if not whole or not isinstance(task, HasValidationMetrics):
            return
        own = save(dict(counted)) if counted is not None and speaks_for_slice(fit) else b""
        everyone = [load(bytes(data)) for data in everyone_sends(own) if data]
        metrics = task.validation_metrics(task.merge(everyone)).metrics if everyone else {}
        fit.metrics |= {f"stream_{name}": value for name, value in metrics.items() if math.isfinite(value)}
