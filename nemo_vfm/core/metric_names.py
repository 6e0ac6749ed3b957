# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tells by its name what a metric is: a validation loss, and whether a small or a large value is good."""

import re
from collections.abc import Iterable
from typing import Literal

Mode = Literal["min", "max"]

#: A training of ours logs the first; other people's modules log any of them.
VALIDATION_LOSSES = ("val_loss", "val/loss", "valid_loss")


def validation_loss(names: Iterable[str]) -> str | None:
    """The one among the names of figures, in which a workflow has a step and a slash before each; None without one."""
    known = list(names)
    return next((name for one in VALIDATION_LOSSES for name in known if f"/{name}".endswith(f"/{one}")), None)


def natural_mode(metric: str) -> Mode:
    """Whether a small or a large value is good, by the name: areas under a curve are large, losses and errors small."""
    return "max" if "auc" in re.split("[_/]", metric) else "min"
