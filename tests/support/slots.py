"""Puts what a test says of a training's length and weights where a recipe has it."""

from typing import Any

from nemo_vfm.train.loop import Loop
from nemo_vfm.train.warm_start import Weights


def slots(**given: Any) -> dict[str, Any]:
    """Arguments of `Train`; an `ema` or `skip` of None is none."""
    loop = {name: given.pop(name) for name in ("duration", "phases", "checkpoint", "validation") if name in given}
    weights = {name: given.pop(name) for name in ("start_from", "adapters") if name in given}
    parts = {name: part for name in ("ema", "skip") if (part := given.pop(name, None)) is not None}
    callbacks = {**parts, **given.pop("callbacks", {})}
    return {"loop": Loop(**loop), "weights": Weights(**weights), "callbacks": callbacks, **given}
