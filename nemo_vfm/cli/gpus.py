# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A recipe that checks and a number of GPUs in, what can be said about the two before anything is reserved out.

The answer never changes the exit status: a recipe that uses one GPU of eight is right, only wasteful, and how many are
reserved is no part of a recipe. It is said in a sentence instead.
"""

import argparse
from collections.abc import Iterator, Sequence

from nemo_vfm.cli.arguments import composed_recipe
from nemo_vfm.cli.permitted import permissions
from nemo_vfm.config import Problem, RecipeError, build
from nemo_vfm.core.types import DevicePlan, Job, Planned
from nemo_vfm.workflow import Workflow

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


def plan_sentences(job: Job, num_gpus: int) -> list[str]:
    """What the job, or each step of a workflow, would do with so many GPUs."""
    gpus = _gpus(num_gpus)
    said = [f"{gpus}{step}: {text}" for step, plan in _plans(job, num_gpus) for text in _sentences(plan)]
    return said or [f"{gpus}: this job has no parallel plan, so there is nothing to check"]


def waiting_sentence(missing: Sequence[Problem], num_gpus: int) -> str:
    """Why nothing can be said yet."""
    wanted = ", ".join(problem.path for problem in missing)
    return f"{_gpus(num_gpus)}: nothing can be said before you give {wanted}"


def _gpus(number: int) -> str:
    return f"{number} {'GPU' if number == 1 else 'GPUs'}"


def _plans(job: Job, num_gpus: int, step: str = "") -> Iterator[tuple[str, DevicePlan]]:
    if isinstance(job, Workflow):
        for name, below in job.steps.items():
            yield from _plans(below, num_gpus, f"{step}, step {name}")
    elif isinstance(job, Planned):
        yield step, job.plan_for(num_gpus)


def _sentences(plan: DevicePlan) -> Iterator[str]:
    parts = ", ".join(f"{name} {_size(size)}" for name, size in plan.state_bytes.items())
    total = _size(sum(plan.state_bytes.values()))
    yield f"{plan.parameters:,} parameters; each GPU that works keeps {total} ({parts}), activations come on top"
    yield from plan.notes


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 5e8 else f"{num_bytes / 1e6:.1f} MB"
