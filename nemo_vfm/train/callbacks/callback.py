# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Defines a callback: any of three hooks, each given the Fit. Lightning's own callbacks may stand beside them."""

from typing import Protocol, runtime_checkable

from nemo_vfm.train.train_state import Fit

HOOKS = ("on_start", "on_step", "on_end")


@runtime_checkable
class Callback(Protocol):
    """Called after every optimizer step. `on_start(fit)` and `on_end(fit)` are called too where a class has them."""

    def on_step(self, fit: Fit) -> None:
        """What to do after optimizer step `fit.step`."""
        ...
