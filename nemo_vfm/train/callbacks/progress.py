# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A Fit in; one line on the terminal out: step, loss, speed, time left."""

import math
from contextlib import ExitStack

from nemo_vfm.core import log
from nemo_vfm.train.fit import Fit


class ShowProgress:
    """A bar over the steps, or over the seconds where the run ends by the clock."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._smooth: float | None = None

    def on_start(self, fit: Fit) -> None:
        """Put the bar up."""
        total = fit.total_steps if fit.limit_s is None else round(fit.limit_s)
        done = fit.step if fit.limit_s is None else round(fit.elapsed_s)
        self._shown = done
        self._bar = self._stack.enter_context(log.bar("training", total, completed=done))

    def on_step(self, fit: Fit) -> None:
        """Move it on."""
        assert fit.result is not None
        loss = fit.result.loss
        if math.isfinite(loss):  # of a step that was skipped it is not
            self._smooth = loss if self._smooth is None else 0.95 * self._smooth + 0.05 * loss
        now = fit.step if fit.limit_s is None else int(fit.elapsed_s)
        self._bar.advance(now - self._shown, "" if self._smooth is None else f"loss {self._smooth:.4f}")
        self._shown = now

    def on_end(self, fit: Fit) -> None:
        """Take it down."""
        self._stack.close()
