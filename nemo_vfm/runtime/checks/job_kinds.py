"""Tells trainings and samplings from other jobs, without importing their rooms."""

import sys
from typing import TYPE_CHECKING, TypeGuard

from nemo_vfm.core.types.job import Job

if TYPE_CHECKING:
    from nemo_vfm.synth.sample_videos import Sample
    from nemo_vfm.train.job import Train


def is_a(job: object, module: str, kind: str) -> bool:
    """Whether it is of a class; where nobody has imported its module yet, nothing is, and torch need not be waited
    for."""
    there = sys.modules.get(module)
    return there is not None and isinstance(job, getattr(there, kind))


def trains(job: Job) -> "TypeGuard[Train]":
    """Whether it is a training."""
    return is_a(job, "nemo_vfm.train.job", "Train")


def samples(job: Job) -> "TypeGuard[Sample]":
    """Whether it draws videos."""
    return is_a(job, "nemo_vfm.synth.sample_videos", "Sample")
