"""Computes how many workers of a cluster each step gets, so that no step waits for another."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """What a step takes.

    Args:
        busy_s: seconds that one worker works for one item of the pipeline; 0 where it is not known yet.
        cpus: cores a worker.
        gpus: GPUs a worker.
    """

    busy_s: float
    cpus: float
    gpus: float


def shares(needs: Sequence[Need], *, cpus: float, gpus: float, most: int) -> list[int]:
    """Workers a step: one each, and then always one more for the slowest step, while there is room for it.

    A pipeline gives as many items a second as its slowest step, workers / busy_s; so this raises the least of these
    ratios as long as the machine allows, and stops where more of any other step would only wait.

    Args:
        needs: of the steps, in order.
        cpus: cores there are.
        gpus: GPUs there are.
        most: workers that any step may have.
    """
    workers = [1] * len(needs)
    while True:
        slowest = min(range(len(needs)), key=lambda step: workers[step] / max(needs[step].busy_s, 1e-9))
        used_cpus = sum(count * need.cpus for count, need in zip(workers, needs, strict=True)) + needs[slowest].cpus
        used_gpus = sum(count * need.gpus for count, need in zip(workers, needs, strict=True)) + needs[slowest].gpus
        if used_cpus > cpus + 1e-9 or used_gpus > gpus + 1e-9 or workers[slowest] >= most:
            return workers
        workers[slowest] += 1
