"""Writes the metrics of each step to metrics.jsonl and to every Lightning logger."""

import json
import math
from collections.abc import Sequence

from nemo_vfm.core import ranks
from nemo_vfm.core.secret import conceal_names
from nemo_vfm.core.storage.files import drop_steps_after
from nemo_vfm.train.loggers.guard import GuardedLogger
from nemo_vfm.train.state.train_state import TrainState


class WriteMetrics:
    """Writes what the other callbacks put into `fit.metrics`, on rank 0; the next step empties it.

    Args:
        loggers: Lightning loggers that are given the same numbers, and the step's preview where there is one.
    """

    def __init__(self, loggers: Sequence[GuardedLogger]) -> None:
        self.loggers = loggers

    def on_start(self, fit: TrainState) -> None:
        """Forget the lines of steps that will be taken again."""
        if ranks.is_first():
            drop_steps_after(fit.run.folder / "metrics.jsonl", fit.step)

    def on_step(self, fit: TrainState) -> None:
        """Append one line. Names lose their secrets here, before the checkpoint keeps them too."""
        fit.metrics = conceal_names(fit.metrics)
        if not ranks.is_first():
            return
        # JSON has no NaN: a number that is not finite is left out of the line, as a gap in the curve.
        finite = {name: value for name, value in fit.metrics.items() if math.isfinite(value)}
        line = json.dumps({"step": fit.step, "time_s": round(fit.elapsed_s, 4), **finite})
        with (fit.run.folder / "metrics.jsonl").open("a") as file:
            file.write(line + "\n")
        for logger in self.loggers:
            logger.log_metrics(finite, fit.step)
        picture = fit.run.folder / "samples" / f"step-{fit.step:08d}.png"
        for logger in self.loggers if self.loggers and picture.is_file() else ():
            logger.log_picture(picture, fit.step)
