"""Finds models whose weights nothing brings, or brings only adapters of."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_vfm.runtime.checks.built_networks import Address, is_of_folder
from nemo_vfm.runtime.checks.job_kinds import samples, trains


def without_weights(job: Any) -> Iterator[tuple[Address, str]]:
    """Of a job with a model: the address of what is to be changed, and why."""
    from nemo_vfm.parallel.checkpoint.checkpoint import adapters_alone

    if trains(job):
        at: Address = ("weights", "start_from")
        start = job.weights.start_from
        given = None if start is None else start.path
    elif hasattr(job, "checkpoint"):
        given, at = job.checkpoint, ("checkpoint",)
    else:
        return
    key = ".".join(at)
    # Videos are also drawn without weights, as a baseline that the recipe asks for.
    if given is None and is_of_folder(job) and not samples(job):
        yield ("model",), (f"a folder gives this network its sizes, and {key}, which is not set, its weights; set "
                           f"{key} to the same folder")  # fmt: skip
    if isinstance(given, Path) and (text := adapters_alone(given)):
        yield at, text
