# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A Fit in; whole checkpoints out, every so many steps and at the end."""

from nemo_vfm.parallel.checkpoint import save
from nemo_vfm.train.fit import Fit


class SaveCheckpoints:
    """Writes `checkpoints/step-<n>/`.

    Args:
        every_steps: optimizer steps between checkpoints; there is always one at the end.
        keep_last: how many of the newest stay on disk; None keeps all.
    """

    def __init__(self, *, every_steps: int = 1000, keep_last: int | None = 2) -> None:
        if every_steps < 1 or (keep_last is not None and keep_last < 1):
            raise ValueError(f"every_steps ({every_steps}) and keep_last ({keep_last}) must be at least 1")
        self.every_steps, self.keep_last = every_steps, keep_last

    def on_step(self, fit: Fit) -> None:
        """Save where due."""
        if fit.due(self.every_steps):
            save(fit.checkpoints, fit.step, fit.groups(), fit.state(), self.keep_last)
