"""Builds the job of a recipe that leaves values to the user, with something in their place."""

import argparse
from collections.abc import Sequence

from nemo_vfm.config import Problem, RecipeError, build
from nemo_vfm.core.types.job import Job
from nemo_vfm.runtime.command import composed_recipe
from nemo_vfm.runtime.user_permissions import permissions

_STAND_IN = "given-later"


def stand_in_job(arguments: argparse.Namespace, missing: Sequence[Problem], trust: Sequence[str]) -> Job | None:
    """The job of a recipe with values still to be given; None where more than paths and texts are missing.

    Constructors touch no disk, so any path will do to ask what the job would do.
    """
    try:
        return _stand_in(arguments, missing, trust)
    except RecipeError:
        return None


def refused(arguments: argparse.Namespace, missing: Sequence[Problem], trust: Sequence[str]) -> list[Problem]:
    """What is wrong with a recipe once something stands for the values still to be given, some of it for that."""
    try:
        _stand_in(arguments, missing, trust)
    except RecipeError as error:
        return list(error.problems)
    return []


def _stand_in(arguments: argparse.Namespace, missing: Sequence[Problem], trust: Sequence[str]) -> Job:
    given = [*arguments.overrides, *(f"{problem.path}={_STAND_IN}" for problem in missing)]
    composed = composed_recipe(argparse.Namespace(**{**vars(arguments), "overrides": given}))
    job: Job = build(composed, trust, permissions(arguments.allow_host, composed.path))
    return job
