"""Builds rankers whose tables are as large as their data says, where the data are written already."""

import sys
from collections.abc import Iterator
from typing import Any

from nemo_vfm.config import RecipeError
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.job import Job
from nemo_vfm.runtime.checks.built_networks import Address
from nemo_vfm.workflow import Workflow


def wrong_tables(job: Any) -> Iterator[tuple[Address, str]]:
    """Of a job with a model: what does not fit a table that is there, and where that is to be changed."""
    if isinstance(error := _refusal(job), RecipeError) and not _waits(job, error):
        for problem in error.problems:
            inside = problem.path.rpartition("model.")[2]
            yield ("model", *inside.split(".")), problem.message
    elif isinstance(error, DataError):
        yield ("data",), str(error)


def unknown_until_written(job: Job, step: str = "") -> Iterator[str]:
    """A sentence on each model whose tables are as large as a step will say that is not done yet."""
    if isinstance(job, Workflow):
        for name, below in job.steps.items():
            yield from unknown_until_written(below, f"{step}steps.{name}.")
    elif isinstance(error := _refusal(job), RecipeError) and _waits(job, error):
        yield f"{step}model is not checked: {error.problems[0].message}"


def _refusal(job: Any) -> RecipeError | DataError | None:
    """Of a model that may ask its data; nothing does where nobody has imported rankers."""
    there, model = sys.modules.get("nemo_vfm.models.recommenders.table_choice"), getattr(job, "model", None)
    if there is None or not isinstance(model, there.SizedModel):
        return None
    from nemo_vfm.parallel.plan.static_memory import on_meta

    try:
        on_meta(model)
    except (RecipeError, DataError) as error:
        return error
    return None


def _waits(job: Any, error: RecipeError) -> bool:
    """Whether it is for the table alone that the model cannot be built, and that is not there yet."""
    return isinstance(error.__cause__, UserError) and not (job.data.folder / "manifest.json").is_file()
