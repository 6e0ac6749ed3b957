"""Says what a recipe would do with a number of GPUs, and whether it fits, before anything is reserved.

The answer never changes the exit status: a recipe that uses one GPU of eight is valid, only wasteful. How many are
reserved is no part of a recipe, so a sentence says it instead.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from nemo_vfm.cli.arguments import NETWORK
from nemo_vfm.cli.planning.layout_words import binary, count, gib
from nemo_vfm.config import Problem, RecipeError
from nemo_vfm.core.types.job import DevicePlan, HasNeeds, Job, needs_of
from nemo_vfm.workflow import jobs_in


def plan_sentences(
    job: Job | None, missing: Sequence[Problem], recipe: Path, arguments: argparse.Namespace
) -> list[str]:
    """What the job, or each step of a workflow, would do with so many GPUs; else why nothing can be said yet."""
    gpus = count(arguments.gpus, "GPU", "GPUs")
    if job is None:
        return [f"{gpus}: it cannot be checked before you give {', '.join(problem.path for problem in missing)}"]
    sentences = []
    for at, below in jobs_in(job):
        here = f"{gpus}{''.join(f', step {name}' for name in at[1::2])}"
        try:
            plan = needs_of(below, num_gpus=arguments.gpus).plan if isinstance(below, HasNeeds) else None
        except RecipeError as error:  # of a model whose sizes an earlier step still has to write
            sentences.append(f"{here}: it cannot be checked yet: {error.problems[0].message}")
            continue
        if plan is not None and plan.parameters:  # else a note says why they are not known
            sentences.append(f"{here}: {plan.parameters:,} parameters; {_memory(below, plan, recipe, arguments)}")
        sentences += [f"{here}: {note}" for note in (plan.notes if plan is not None else ())]
    return sentences or [f"{gpus}: this job has no parallel plan, so there is nothing to check"]


def _memory(job: Job, plan: DevicePlan, recipe: Path, arguments: argparse.Namespace) -> str:
    """What the fullest GPU needs, by the model that `nemo-vfm plan` ranks layouts with."""
    from nemo_vfm.cli.planning.plan_page import fp8_sentences
    from nemo_vfm.cli.planning.plan_request import request_of
    from nemo_vfm.perf.gpu_specs import gpu_named
    from nemo_vfm.perf.planner import Planner
    from nemo_vfm.train.job import Train

    if not isinstance(job, Train):
        return _static_memory_text(plan, f"a step of {type(job).__name__} is not known to the planner")
    given = {**vars(arguments), "network": NETWORK, "phase": None}
    try:
        gpu_named(arguments.gpu)
        request = request_of(job, recipe, argparse.Namespace(**given), own_only=True)
        needed = Planner(request.question).choice(request.own, recompute=request.recompute).memory
    except ValueError as error:  # UserError is one
        return _static_memory_text(plan, str(error))
    parts = {"weights": needed.parameters, "gradients": needed.gradients, "optimizer": needed.optimizer,
             "running average": needed.average, request.held.kinds: needed.beside,
             "activations and gathered weights": needed.activations,
             "cuBLAS's workspaces": needed.workspaces}  # fmt: skip
    shown = ", ".join(f"{name} {binary(size)}" for name, size in parts.items() if size)
    fits, gpu = request.question.fits(needed), request.question.machine.gpu
    width = "".join(f"; {sentence.rstrip('.')}" for sentence in fp8_sentences(request.question))
    unknown = " and ".join(sorted(request.held.unknown))
    left_out = f", leaving out {unknown}, whose size is not known" if unknown else ""
    return (
        f"on {request.own} the fullest GPU needs {binary(needed.total)} at {needed.moment} ({shown}) of the "
        f"{gib(gpu.usable_bytes)} GiB that one {gpu.name} has to fill: "
        + (f"it fits{left_out}" if fits
           else f"it does not fit; `nemo-vfm plan --gpus {request.own.world}` lists what would")
        + width
    )  # fmt: skip


def _static_memory_text(plan: DevicePlan, why: str) -> str:
    """What stands all the time, where a step is not known."""
    parts = ", ".join(f"{name} {binary(size)}" for name, size in plan.state_bytes.items())
    total = binary(sum(plan.state_bytes.values()))
    return f"each GPU that works keeps {total} ({parts}), and what a step needs on top is not known: {why}"
