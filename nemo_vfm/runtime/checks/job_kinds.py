"""Tells trainings and samplings from other jobs, without importing their rooms."""

import sys
from typing import TYPE_CHECKING, TypeGuard

from nemo_vfm.core.types.job import Job

if TYPE_CHECKING:
    from nemo_vfm.synth.sample_videos import Sample
    from nemo_vfm.train.job import Train


def trains(job: Job) -> "TypeGuard[Train]":
    """Whether it is a training; where nobody has imported that room yet, none is, and torch need not be waited for."""
    room = sys.modules.get("nemo_vfm.train.job")
    return room is not None and isinstance(job, room.Train)


def samples(job: Job) -> "TypeGuard[Sample]":
    """Whether it draws videos; see `trains`."""
    room = sys.modules.get("nemo_vfm.synth.sample_videos")
    return room is not None and isinstance(job, room.Sample)
