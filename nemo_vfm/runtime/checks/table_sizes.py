"""Builds rankers whose tables are as large as their data says, where the data are written already."""

from collections.abc import Iterator
from typing import Any

from nemo_vfm.config import RecipeError
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.job import Job
from nemo_vfm.core.types.training_data import HasTableRows
from nemo_vfm.runtime.checks.built_networks import Address
from nemo_vfm.workflow import jobs_in


def wrong_tables(job: Any) -> Iterator[tuple[Address, str]]:
    """Of a job with a model: what does not fit a table that is there, and where that is to be changed."""
    if isinstance(error := _refusal(job), RecipeError) and not _waits(job, error):
        for problem in error.problems:
            inside = problem.path.rpartition("model.")[2]
            yield ("model", *inside.split(".")), problem.message
    elif isinstance(error, DataError):
        yield ("data",), str(error)


def unknown_until_written(whole: Job) -> Iterator[str]:
    """A sentence on each model whose tables are as large as a step will say that is not done yet."""
    for at, job in jobs_in(whole):
        if isinstance(error := _refusal(job), RecipeError) and _waits(job, error):
            yield f"{'.'.join((*at, 'model'))} is not checked: {error.problems[0].message}"


def _refusal(job: Any) -> RecipeError | DataError | None:
    """Of a model that may ask its data."""
    model: Any = getattr(job, "model", None)
    if model is None or not isinstance(getattr(job, "data", None), HasTableRows):
        return None
    from nemo_vfm.parallel.plan.static_memory import on_meta

    try:
        on_meta(model)
    except (RecipeError, DataError) as error:
        return error
    return None


def _waits(job: Any, error: RecipeError) -> bool:
    """Whether it is for the table alone that the model cannot be built, and that is not there yet."""
    return isinstance(error.__cause__, UserError) and not job.data.is_written()
