"""Tells what a metric is: by its name a validation loss, or good where it is small; by its records no longer finite."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

Mode = Literal["min", "max"]

#: A training of ours logs the first; other people's modules log any of them.
VALIDATION_LOSSES = ("val_loss", "val/loss", "valid_loss")
#: The key in a line of metrics.jsonl that lists what was logged and is NaN or infinite, which JSON cannot hold.
NOT_FINITE = "not_finite"


def validation_loss(names: Iterable[str]) -> str | None:
    """The one among the names of figures, in which a workflow has a step and a slash before each; None without one."""
    known = list(names)
    return next((name for one in VALIDATION_LOSSES for name in known if f"/{name}".endswith(f"/{one}")), None)


def natural_mode(metric: str) -> Mode:
    """Whether a small or a large value is good, by the name: areas under a curve are large, losses and errors small."""
    return "max" if "auc" in re.split("[_/]", metric) else "min"


def not_finite_since(records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """`{name: step}` of the numbers that end as NaN or infinite; the records of metrics.jsonl, the newest first."""
    since: dict[str, int] = {}
    finite: set[str] = set()
    for record in records:
        step, names = record.get("step"), record.get(NOT_FINITE)
        if type(step) is int and abs(step) < 1 << 53:
            listed = names if isinstance(names, list) else []
            since |= {name: step for name in listed if isinstance(name, str) and name not in finite}
        finite |= record.keys()
    return since


def not_finite_text(since: Mapping[str, int]) -> str:
    """It as words, the earliest three by name; empty where all is finite."""
    ordered = sorted(since, key=lambda name: (since[name], "loss" not in name, name))
    more = [f"{len(ordered) - 3} more"] if len(ordered) > 3 else []
    parts = [f"{name} (since step {since[name]:,})" for name in ordered[:3]]
    return f"NaN or infinite: {', '.join([*parts, *more])}" if since else ""
