"""Reads from a run's recipe the metric by which its best checkpoints are kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.metric_names import Mode, natural_mode
from nemo_vfm.core.types.job import RECIPE
from nemo_vfm.core.types.json_value import Json


@dataclass(frozen=True, slots=True)
class RecipeMetric:
    """A metric that a recipe names."""

    name: str  #: as the training logs it
    mode: Mode  #: whether a small or a large value is good
    step: str = ""  #: of a workflow, the step that logs it, with a slash behind it; else empty


def recipe_metric(run: Path) -> RecipeMetric | None:
    """That of a run's folder; None where its recipe names none."""
    try:
        text = (run / RECIPE).read_text()
        if "metric" not in text:  # most of hundreds of runs, which need not wait for YAML
            return None
        from nemo_vfm.config import read_values

        return _of(read_values(text, "this recipe"))
    except (OSError, ValueError, UserError):  # a run that has not begun, or somebody's file
        return None


def _of(settings: Json, step: str = "") -> RecipeMetric | None:
    if not isinstance(settings, Mapping):
        return None
    if isinstance(steps := settings.get("steps"), Mapping):
        found = (_of(below, f"{step}{name}/") for name, below in steps.items())
        return next(filter(None, found), None)
    loop = settings.get("loop")
    checkpoint = loop.get("checkpoint") if isinstance(loop, Mapping) else settings.get("keep_best")
    if not isinstance(checkpoint, Mapping) or not isinstance(name := checkpoint.get("metric"), str):
        return None
    mode = checkpoint.get("mode") or natural_mode(name)
    return RecipeMetric(name, "max" if mode == "max" else "min", step)
