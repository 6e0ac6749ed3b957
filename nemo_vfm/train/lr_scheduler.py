# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Shows the learning rates of a training's schedule as one of torch's schedulers."""

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from nemo_vfm.train.train_state import TrainState


class EngineSchedule(LRScheduler):
    """The rates of the coming step, for whoever looks at the optimizer before it.

    It has no state: the engine sets the same rates again when it takes the step, from the schedule and the step alone.
    """

    def __init__(self, fit: TrainState) -> None:
        self._fit = fit
        super().__init__(fit.engine.optimizer())

    def get_lr(self) -> list[float | Tensor]:
        """One for each group of parameters."""
        factor = self._fit.schedule.factor(self._fit.step, self._fit.total_steps)
        return [base * factor for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """Set them; after the last step there are none to set."""
        if self._fit.finished:
            return
        self._last_lr = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate
