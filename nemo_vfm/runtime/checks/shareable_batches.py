"""Finds batches and videos that the ranks of a plan cannot share, before any rank is started."""

import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nemo_vfm.config import Composed, Problem
from nemo_vfm.core.types.component import PartRefused
from nemo_vfm.core.types.job import Job
from nemo_vfm.runtime.checks.job_kinds import trains
from nemo_vfm.workflow import Workflow

if TYPE_CHECKING:
    from torch import nn

    from nemo_vfm.parallel.plan.plan import ParallelPlan
    from nemo_vfm.train.job import Train

Address = tuple[str, ...]


def unshareable(composed: Composed, job: Job) -> list[Problem]:
    """Why ranks could not start, of the job or of each step of a workflow, at its place in the recipe."""
    found = dict.fromkeys(_found(job, ()))
    return [Problem(".".join(address), composed.written(address), text) for address, text in found]


def _found(job: Job, step: Address) -> Iterator[tuple[Address, str]]:
    if isinstance(job, Workflow):
        for name, below in job.steps.items():
            yield from _found(below, (*step, "steps", name))
        return
    if "nemo_vfm.train.job" not in sys.modules:  # nothing that trains was built, and to import it brings torch
        return
    from nemo_vfm.train.job import Train

    if isinstance(job, Train):
        yield from (((*step, *address), text) for address, text in _of_training(job))


def unknown_until_begun(job: Job, step: str = "") -> Iterator[str]:
    """A sentence on each phase whose ranks share a sample's tokens, where nobody can say how many these are."""
    if isinstance(job, Workflow):
        for name, below in job.steps.items():
            yield from unknown_until_begun(below, f"{step}steps.{name}.")
    elif trains(job) and getattr(job.data, "buckets", job) is None:
        for phase in job.phases:
            if phase.plan.tokens > 1:
                yield (
                    f"{step}loop.phases.{phase.name}: {phase.plan.tokens} ranks share the tokens of each sample, and "
                    f"without {step}data.buckets the shapes of latents are known only once they are read: if they "
                    f"cannot be divided, the training ends when this phase begins, at step {phase.first + 1:,}"
                )


def _of_training(job: "Train") -> Iterator[tuple[Address, str]]:
    try:
        job.require_even()
    except PartRefused as error:
        yield error.address, str(error)
    for plan in dict.fromkeys([phase.plan for phase in job.phases] or [job.parallel]):
        yield from ((("data", "buckets"), text) for text in _of(job, plan))


def _of(job: "Train", plan: "ParallelPlan") -> Iterator[str]:
    from nemo_vfm.parallel.layers.token_layout import require_divided
    from nemo_vfm.parallel.plan.static_memory import on_meta

    if plan.tokens == 1:
        return
    for name, tokens in _videos(job, on_meta(job.model)):
        try:
            require_divided(tokens, plan.tokens)
        except ValueError as error:
            yield f"bucket {name}: {error}"


def _videos(job: "Train", model: "nn.Module") -> Iterator[tuple[str, int]]:
    """(bucket, tokens of its samples), where the recipe says both; packed samples are filled up, so any number does."""
    buckets, codec = getattr(job.data, "buckets", None), getattr(job.task, "codec", None)
    patch = getattr(model, "patch", None)
    if buckets is None or codec is None or patch is None:
        return
    for name, one in buckets.buckets.items():
        sides = codec.latent_shape(one.num_frames, one.height, one.width)[1:]
        yield name, math.prod(side // cut for side, cut in zip(sides, patch, strict=True))
