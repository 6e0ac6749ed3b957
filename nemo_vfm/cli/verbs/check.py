# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Check a recipe: every problem at its place, all at once. Nothing is run and nothing is written."""

import argparse
import sys
from typing import TYPE_CHECKING

from nemo_vfm.cli.arguments import add_recipe_arguments, composed_recipe
from nemo_vfm.cli.quick import without_collection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nemo_vfm.config import Composed, Problem
    from nemo_vfm.core.types import Job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe, and how many GPUs it is meant for."""
    add_recipe_arguments(parser)
    parser.add_argument("--gpus", metavar="N", type=int, help="say what it would do with N GPUs; none is needed")
    parser.add_argument("--work", action="store_true",
                        help="print its steps, their ranks and phases as JSON, for a scheduler")  # fmt: skip


@without_collection()
def run(arguments: argparse.Namespace) -> int:
    """0 where the recipe is right, also where it leaves values to the user; 2 else."""
    from nemo_vfm.config import RecipeError, build, check, trust_list
    from nemo_vfm.core.errors import UserError

    if arguments.gpus is not None and arguments.gpus < 1:
        raise UserError(f"--gpus takes one or more, got {arguments.gpus}")
    composed, trust = composed_recipe(arguments), trust_list(arguments.trust)
    problems = check(composed, trust)
    # Constructors only look at their arguments, and object here rather than in a queue.
    job = None if problems else build(composed, trust)
    if problems and all(problem.kind == "missing" for problem in problems):
        problems = [*problems, *_refused_already(arguments, problems, trust)]
    errors = sum(problem.kind == "error" for problem in problems)
    if arguments.work and not errors:
        return _say_work(arguments, composed, job, problems, trust)
    if problems:
        sys.stdout.write(f"{RecipeError(problems)}\n")
    if arguments.gpus is not None and not errors:
        _say_plan(arguments, job, problems, trust)
    sys.stdout.write(f"{composed.path}: {_verdict(errors, len(problems) - errors)}\n")
    return 2 if errors else 0


def _say_work(
    arguments: argparse.Namespace, composed: "Composed", job: "Job | None", missing: "Sequence[Problem]",
    trust: "Sequence[str]",
) -> int:  # fmt: skip
    import json

    from nemo_vfm.cli.gpus import stand_in_job
    from nemo_vfm.cli.work import described

    job = job or stand_in_job(arguments, missing, trust)
    told = described(composed, job, [problem.path for problem in missing])
    sys.stdout.write(f"{json.dumps(told, indent=2)}\n")
    return 0


def _refused_already(
    arguments: argparse.Namespace, missing: "Sequence[Problem]", trust: "Sequence[str]"
) -> "list[Problem]":
    """What constructors refuse whatever the missing values will be: nothing that is missing lies at or below it."""
    from nemo_vfm.cli.gpus import refused

    found = refused(arguments, missing, trust)
    waiting = [problem.path for problem in missing]
    return [one for one in found if one.path and not any(f"{path}.".startswith(f"{one.path}.") for path in waiting)]


def _say_plan(
    arguments: argparse.Namespace, job: "Job | None", missing: "Sequence[Problem]", trust: "Sequence[str]"
) -> None:
    from nemo_vfm.cli.gpus import plan_sentences, stand_in_job, waiting_sentence
    from nemo_vfm.cli.paper import Paper

    job = job or stand_in_job(arguments, missing, trust)
    number = arguments.gpus
    for text in plan_sentences(job, number) if job is not None else [waiting_sentence(missing, number)]:
        Paper().prose(text)


def _verdict(errors: int, missing: int) -> str:
    counts = [f"{errors} {'problem' if errors == 1 else 'problems'}"] * bool(errors)
    counts += [f"{missing} {'value' if missing == 1 else 'values'} for you to give"] * bool(missing)
    return ", ".join(counts) or "ok"
