"""Finds batches and videos that the ranks of a plan cannot share, before any rank is started."""

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nemo_vfm.config import ComposedRecipe, Problem
from nemo_vfm.core.types.component import PartRefused
from nemo_vfm.core.types.job import Job
from nemo_vfm.runtime.checks.job_kinds import trains
from nemo_vfm.workflow import jobs_in

if TYPE_CHECKING:
    from nemo_vfm.train.job import Train

Address = tuple[str, ...]


def unshareable(composed: ComposedRecipe, job: Job) -> list[Problem]:
    """Why ranks could not start, of the job or of each step of a workflow, at its place in the recipe."""
    found = {((*step, *address), text): None
             for step, one in jobs_in(job) if trains(one) for address, text in _of_training(one)}  # fmt: skip
    return [Problem(".".join(address), composed.mark_at(address), text) for address, text in found]


def unknown_until_begun(whole: Job) -> Iterator[str]:
    """A sentence on each phase whose ranks share a sample's tokens, where nobody can say how many these are."""
    for at, job in jobs_in(whole):
        step = "".join(f"{name}." for name in at)
        for phase in job.phases if trains(job) and getattr(job.data, "buckets", job) is None else ():
            if phase.plan.tokens > 1:
                yield (
                    f"{step}loop.phases.{phase.name}: {phase.plan.tokens} ranks share the tokens of each sample, and "
                    f"without {step}data.buckets the shapes of latents are known only once they are read: if they "
                    f"cannot be divided, the training ends when this phase begins, at step {phase.first + 1:,}"
                )


def _of_training(job: "Train") -> Iterator[tuple[Address, str]]:
    from nemo_vfm.parallel.layers.token_layout import require_divided
    from nemo_vfm.parallel.plan.static_memory import on_meta
    from nemo_vfm.train.even_batches import require_even

    try:
        require_even(job.data, job.parallel, job.phases)
    except PartRefused as error:
        yield error.address, str(error)
    # Buckets whose samples' tokens cannot be divided, where the recipe says how many these are; packed samples are
    # filled up, so any number does.
    plans = [phase.plan for phase in job.phases] or [job.parallel]
    degrees = dict.fromkeys(plan.tokens for plan in plans if plan.tokens > 1)
    buckets = getattr(job.data, "buckets", None)
    if not degrees or buckets is None:  # asked first: a pipeline whose folder is not there yet has no codec
        return
    codec, patch = getattr(job.task, "codec", None), getattr(on_meta(job.model), "patch", None)
    if codec is None or patch is None:
        return
    for tokens, (name, one) in itertools.product(degrees, buckets.buckets.items()):
        sides = codec.latent_shape(one.num_frames, one.height, one.width)[1:]
        try:
            require_divided(math.prod(side // cut for side, cut in zip(sides, patch, strict=True)), tokens)
        except ValueError as error:
            yield ("data", "buckets"), f"bucket {name}: {error}"
