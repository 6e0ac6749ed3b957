# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Check a recipe: every problem at its place, all at once. Nothing is run and nothing is written."""

import argparse
import sys

from nemo_vfm.cli.arguments import add_recipe_arguments, composed_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe, and how many GPUs it is meant for."""
    add_recipe_arguments(parser)
    parser.add_argument("--gpus", metavar="N", type=int, help="check the plan for N GPUs, where the job has a plan")


def run(arguments: argparse.Namespace) -> int:
    """0 where the recipe is right, also where it leaves values to the user; 2 else."""
    from nemo_vfm.config import RecipeError, build, check, trust_list
    from nemo_vfm.core.errors import UserError

    if arguments.gpus is not None and arguments.gpus < 1:
        raise UserError(f"--gpus takes one or more, got {arguments.gpus}")
    composed, trust = composed_recipe(arguments), trust_list(arguments.trust)
    problems = check(composed, trust)
    if not problems:
        build(composed, trust)  # constructors only look at their arguments, and object here rather than in a queue
    if problems:
        sys.stdout.write(f"{RecipeError(problems)}\n")
    errors = sum(problem.kind == "error" for problem in problems)
    if arguments.gpus is not None and not errors:
        sys.stdout.write(f"{arguments.gpus} GPUs: this job has no parallel plan, so there is nothing to check\n")
    sys.stdout.write(f"{composed.path}: {_verdict(errors, len(problems) - errors)}\n")
    return 2 if errors else 0


def _verdict(errors: int, missing: int) -> str:
    counts = [f"{errors} {'problem' if errors == 1 else 'problems'}"] * bool(errors)
    counts += [f"{missing} {'value' if missing == 1 else 'values'} for you to give"] * bool(missing)
    return ", ".join(counts) or "ok"
