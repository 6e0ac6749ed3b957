"""Shows the progress of a training: step, loss, speed and time left."""

import math
from contextlib import ExitStack

from nemo_vfm.core import log, progress
from nemo_vfm.core.types.component import no_component
from nemo_vfm.train.state.train_state import TrainState


@no_component
class ShowProgress:
    """A bar over the steps, or over the seconds where the run ends by the clock."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._smooth: float | None = None

    def on_start(self, fit: TrainState) -> None:
        """Put the bar up."""
        total = fit.total_steps if fit.limit_s is None else round(fit.limit_s)
        done = fit.step if fit.limit_s is None else round(fit.elapsed_s)
        self._shown = done
        unit = "steps" if fit.limit_s is None else "s"
        self._bar = self._stack.enter_context(log.bar("training", total, completed=done, unit=unit))

    def on_step(self, fit: TrainState) -> None:
        """Move it on."""
        assert fit.result is not None
        loss = fit.result.loss
        if math.isfinite(loss):  # of a step that was skipped it is not
            self._smooth = loss if self._smooth is None else 0.95 * self._smooth + 0.05 * loss
        now = fit.step if fit.limit_s is None else int(fit.elapsed_s)
        # The loss is a mean of about 20 steps; of a run that ends by the clock also what its bar does not say.
        note = [] if self._smooth is None else [f"smoothed loss {self._smooth:.4f}"]
        if fit.limit_s is not None:
            step_s = progress.current().get("step_s")
            speed = [f"{1 / step_s:.2f} steps/s"] if isinstance(step_s, float) and step_s else []
            note = [f"step {fit.step:,}", *note, *speed]
        self._bar.advance(now - self._shown, ", ".join(note))
        self._shown = now

    def on_end(self, fit: TrainState) -> None:
        """Take it down."""
        self._stack.close()
