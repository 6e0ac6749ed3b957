"""Check a recipe: every problem at its place, all at once. Nothing is run and nothing is written.

A recipe that only leaves values to you (???) is valid. Below the problems are every host and bucket that it would
reach, the variables with their keys, every variable that it reads, and optional packages that are missing here.

With --gpus it adds parameters, the peak memory of the fullest GPU under the recipe's own layout, and whether it fits.
With --sweep every combination of its values is checked.

Examples:
  nemo-vfm check quickstart                                         # every problem at its place
  nemo-vfm check diffusion/dit_xl data.shards=shards --gpus 3       # does it fit, before the data exist
  nemo-vfm check llm/tokenize path=texts tokenizer.folder=tok --paths   # are the files there that it reads
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nemo_vfm.cli.arguments import add_recipe_arguments, add_sample_arguments
from nemo_vfm.cli.without_gc import without_collection
from nemo_vfm.core.program import below_caret
from nemo_vfm.runtime.command import composed_recipe
from nemo_vfm.runtime.terminal import Terminal

if TYPE_CHECKING:
    from nemo_vfm.config import ComposedRecipe, Problem, RecipientEntry
    from nemo_vfm.core.types.job import Job
    from nemo_vfm.core.types.json_value import Json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe, and how many GPUs it is meant for."""
    add_recipe_arguments(parser)
    parser.add_argument(
        "--gpus", metavar="N", type=int, help="check that the recipe fits on N GPUs, without needing any"
    )
    add_sample_arguments(parser)
    parser.add_argument("--sweep", metavar="KEY=A,B", action="extend", nargs="+", default=[],
                        help="check every combination of these values")  # fmt: skip
    parser.add_argument("--paths", action="store_true",
                        help="check that the files and folders that it reads exist")  # fmt: skip
    parser.add_argument("--mount", metavar="OUTSIDE:INSIDE", action="append", default=[],
                        help="with --paths: it runs in a container that mounts this folder at that path")  # fmt: skip
    parser.add_argument("--work", action="store_true",
                        help="print steps, ranks and phases as JSON for a scheduler")  # fmt: skip


@without_collection()
def run(arguments: argparse.Namespace) -> int:
    """0 where the recipe is right, also where it leaves values to the user; 2 else."""
    from nemo_vfm.core.errors import UserError

    if arguments.gpus is not None and arguments.gpus < 1:
        raise UserError(f"--gpus takes one or more, got {arguments.gpus}")
    if not arguments.sweep:
        return _one(arguments)
    from nemo_vfm.runtime.sweep_points import sweep_plan

    sweep = sweep_plan(arguments)
    if arguments.work:
        from nemo_vfm.runtime import sweep_table

        found = []
        for point in sweep.points:
            own = sweep.arguments_of(point)
            composed, job, problems = _looked_at(own)
            if any(problem.kind == "error" for problem in problems):
                sys.stdout.write(f"{' '.join(point.words())}\n")
                return _one(own)
            work = _work(own, composed, job, problems)
            found.append({"name": point.name, "changes": sweep.changes(point), "work": work})
        notes = {"folder": str(sweep.folder), "table": sweep_table.before(sweep), "points": found}
        sys.stdout.write(f"{json.dumps(notes, indent=2)}\n")
        return 0
    status = 0
    for point in sweep.points:
        sys.stdout.write(f"{' '.join(point.words())}\n")
        status = max(status, _one(sweep.arguments_of(point)))
    return status


def _one(arguments: argparse.Namespace) -> int:
    composed, job, problems = _looked_at(arguments)
    recipients, packages = _recipients_and_packages(arguments, composed)
    notes: Sequence[object] = recipients
    if arguments.paths:
        from nemo_vfm.config import paths, trust_list
        from nemo_vfm.runtime.checks.missing_paths import mounts_of, paths_seen
        from nemo_vfm.runtime.user_permissions import permissions

        named = paths(composed, trust_list(arguments.trust), permissions(arguments.allow_host, composed.path))
        absent, unseen = paths_seen(composed, named, mounts_of(arguments.mount))
        problems, notes = [*problems, *absent], [*notes, *unseen]
    if job is not None:
        from nemo_vfm.runtime.checks.pipeline_folders import schedulers_that_differ
        from nemo_vfm.runtime.checks.shareable_batches import unknown_until_begun
        from nemo_vfm.runtime.checks.table_sizes import unknown_until_written

        notes = [*notes, *unknown_until_begun(job), *unknown_until_written(job), *schedulers_that_differ(job)]
    notes = [*notes, *packages]
    errors = sum(problem.kind == "error" for problem in problems)
    if arguments.work and not errors:
        sys.stdout.write(f"{json.dumps(_work(arguments, composed, job, problems), indent=2)}\n")
        return 0
    if problems:
        from nemo_vfm.config import RecipeError

        sys.stdout.write(f"{below_caret(str(RecipeError(problems)), sys.stdout)}\n")
    if arguments.gpus is not None and not errors:
        from nemo_vfm.cli.planning.gpu_check import plan_sentences
        from nemo_vfm.cli.recipe_job import stand_in_job
        from nemo_vfm.config import trust_list

        job = job or stand_in_job(arguments, problems, trust_list(arguments.trust))[0]
        for text in plan_sentences(job, problems, composed.path, arguments):
            Terminal().prose(text)
    sys.stdout.writelines(f"{one}\n" for one in notes)
    missing = len(problems) - errors
    counts = [f"{errors} {'problem' if errors == 1 else 'problems'}"] * bool(errors)
    counts += [f"{missing} {'value' if missing == 1 else 'values'} for you to give"] * bool(missing)
    Terminal().result(f"{composed.path}: {', '.join(counts) or 'ok'}")
    return 2 if errors else 0


def _looked_at(arguments: argparse.Namespace) -> "tuple[ComposedRecipe, Job | None, list[Problem]]":
    """A recipe, what it builds where nothing is wrong with it, and what is."""
    from nemo_vfm.config import RecipeError, build, check, trust_list
    from nemo_vfm.runtime.user_permissions import permissions

    composed, trust = composed_recipe(arguments), trust_list(arguments.trust)
    allowed = permissions(arguments.allow_host, composed.path)
    problems, job = check(composed, trust, allowed), None
    try:  # constructors only look at their arguments, and object here rather than in a queue
        job = None if problems else build(composed, trust, allowed)
    except RecipeError as error:
        problems = list(error.problems)
    tried = job
    if problems and all(problem.kind == "missing" for problem in problems):
        from nemo_vfm.cli.recipe_job import stand_in_job

        # What constructors refuse whatever the missing values will be: nothing that is missing lies at or below it.
        waiting = [problem.path for problem in problems]
        tried, refused = stand_in_job(arguments, problems, trust)
        problems += [one for one in refused
                     if one.path and not any(f"{path}.".startswith(f"{one.path}.") for path in waiting)]  # fmt: skip
    if not any(problem.kind == "error" for problem in problems):
        from nemo_vfm.runtime.checks.meta_build import refusals
        from nemo_vfm.runtime.checks.shareable_batches import unshareable

        # What could not be built or shared by the ranks of its plan.
        problems += refusals(composed, tried, trust, allowed) or ([] if tried is None else unshareable(composed, tried))
    return composed, job, problems


def _work(
    arguments: argparse.Namespace, composed: "ComposedRecipe", job: "Job | None", missing: "Sequence[Problem]"
) -> "Json":
    from nemo_vfm.cli.recipe_job import stand_in_job
    from nemo_vfm.config import needs, trust_list
    from nemo_vfm.runtime.recipe_work import describe
    from nemo_vfm.runtime.user_permissions import permissions

    trust = trust_list(arguments.trust)
    job = job or stand_in_job(arguments, missing, trust)[0]
    found = needs(composed, trust, permissions(arguments.allow_host, composed.path))
    work = describe(composed, job, [problem.path for problem in missing], [path for path, need in found if need.gpu])
    recipients, packages = _recipients_and_packages(arguments, composed)
    return {**work, "recipients": [str(one) for one in recipients], "packages": packages}


def _recipients_and_packages(
    arguments: argparse.Namespace, composed: "ComposedRecipe"
) -> "tuple[list[RecipientEntry], list[str]]":
    """What it would reach; a sentence where optional packages are missing here, which another machine may have."""
    from nemo_vfm.config import recipients, trust_list
    from nemo_vfm.runtime.checks.missing_packages import describe_missing, missing_packages
    from nemo_vfm.runtime.user_permissions import permissions

    trust, allowed = trust_list(arguments.trust), permissions(arguments.allow_host, composed.path)
    missing = missing_packages(composed, trust, allowed)
    return recipients(composed, trust, allowed), [describe_missing(missing)] if missing else []
