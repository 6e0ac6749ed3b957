"""Builds a recipe's job with something in place of what the user still has to give, or made small enough for a laptop.

A small training has the overlays `smoke` and `parity`: the model keeps its class and its computation, and gets four
narrow blocks of four heads. Batches are synthetic, so nothing that the recipe leaves to the user has to exist.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nemo_vfm.config import ComposedRecipe, Problem, RecipeError, build, check, trust_list
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Job
from nemo_vfm.runtime.command import composed_recipe
from nemo_vfm.runtime.user_permissions import permissions

if TYPE_CHECKING:
    from torch import nn

    from nemo_vfm.parallel.verify.tiny_training import TinyTraining
    from nemo_vfm.train.job import Train

OVERLAYS = ("smoke", "parity")
_STAND_IN = "given-later"


def stand_in_job(
    arguments: argparse.Namespace, missing: Sequence[Problem], trust: Sequence[str]
) -> tuple[Job | None, list[Problem]]:
    """The job of a recipe with something in the place of values still to be given, or what is wrong with it then.

    Constructors touch no disk, so any path will do to ask what the job would do. There is no job where more than paths
    and texts are missing; some of the problems may be due to what stands in.
    """
    given = [*arguments.overrides, *(f"{problem.path}={_STAND_IN}" for problem in missing)]
    try:
        composed = composed_recipe(argparse.Namespace(**{**vars(arguments), "overrides": given}))
        return build(composed, trust, permissions(arguments.allow_host, composed.path)), []
    except RecipeError as error:
        return None, list(error.problems)


def tiny_training(
    arguments: argparse.Namespace, overlays: Sequence[str] = OVERLAYS
) -> "tuple[TinyTraining, nn.Module, Train]":
    """The recipe's training made ready, its model without memory, and the job."""
    from nemo_vfm.parallel.verify.tiny_training import rehearsal_of

    small = argparse.Namespace(**{**vars(arguments), "overlay": [*overlays, *arguments.overlay]})
    _, job = _find_training(_build_job(small)[0], arguments.recipe)
    if isinstance(job.optimizer, Mapping):
        raise UserError(f"{arguments.recipe} has several optimizers, which update in turns; only a training with one "
                        f"can be tried on a small model")  # fmt: skip
    try:
        ready, model = rehearsal_of(
            job.model, job.task, job.optimizer, seed=0, engine=job.engine, fp8=job.precision.fp8
        )
    except RecipeError as error:
        raise UserError(
            f"the model of {arguments.recipe} cannot be built without its files, so no small one can be tried:\n{error}"
        ) from error
    return ready, model, job


def built_training(arguments: argparse.Namespace) -> "tuple[Train, str, ComposedRecipe]":
    """The one training of a recipe, with something in the place of what is still to be given; where it is; the recipe.

    The place is that of a step in a workflow, as `steps.train.`; empty where the training is the recipe.
    """
    job, composed = _build_job(arguments)
    steps, found = _find_training(job, arguments.recipe)
    return found, "".join(f"steps.{name}." for name in steps), composed


def _build_job(arguments: argparse.Namespace) -> "tuple[Job, ComposedRecipe]":
    """The job, and the recipe. To compose a recipe takes a second: it is done again only where it must be."""
    trust, composed = trust_list(arguments.trust), composed_recipe(arguments)
    allowed = permissions(arguments.allow_host, composed.path)
    problems = check(composed, trust, allowed)
    if any(problem.kind != "missing" for problem in problems):
        raise RecipeError(problems)
    job = stand_in_job(arguments, problems, trust)[0] if problems else build(composed, trust, allowed)
    if job is None:  # more than paths and texts is missing
        raise RecipeError(problems)
    return job, composed


def _find_training(job: "Job", name: str) -> "tuple[tuple[str, ...], Train]":
    """The only one, after the names of the steps that it is in."""
    from nemo_vfm.train.job import Train
    from nemo_vfm.workflow import jobs_in

    found = [(at[1::2], below) for at, below in jobs_in(job) if isinstance(below, Train)]
    if not found:
        raise UserError(f"{name} trains nothing, so there is no layout to try")
    if len(found) > 1:
        listed = ", ".join(".".join(steps) for steps, _ in found)
        raise UserError(f"{name} has {len(found)} trainings ({listed}); give one of them its own recipe")
    return found[0]
