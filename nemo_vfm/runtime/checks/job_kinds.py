"""Tells trainings from other jobs by what they declare."""

from typing import TYPE_CHECKING, TypeGuard

from nemo_vfm.core.types.job import Job, needs_of

if TYPE_CHECKING:
    from nemo_vfm.train.job import Train


def trains(job: Job) -> "TypeGuard[Train]":
    """Whether it is a training by our own steps; any other job need not wait for torch."""
    if not needs_of(job).plannable:
        return False
    from nemo_vfm.train.job import Train

    return isinstance(job, Train)
