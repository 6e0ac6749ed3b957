"""Draws how a service treats each attempt at a row, and computes the wall time of a client that knows its capacity."""

import heapq
import math
import random
from dataclasses import dataclass
from typing import Literal

MEDIAN_S, SIGMA = 0.25, 0.6
SHARE_500, SHARE_HANG = 0.02, 0.01
TIMEOUT_S = 2.5
K = 32

Kind = Literal["answer", "500", "hang"]


@dataclass(frozen=True, slots=True)
class Service:
    """What a service does with attempts, the same for everybody who asks.

    Args:
        seed: of all draws.
        scale: of all times, the client's time-out included.
    """

    seed: int
    scale: float = 1.0

    def draw(self, row: int, attempt: int) -> tuple[Kind, float]:
        """How it ends, and after how many seconds; a hang ends at the client's time-out."""
        rng = random.Random(f"{self.seed}/{row}/{attempt}")
        share, seconds = rng.random(), rng.lognormvariate(math.log(MEDIAN_S), SIGMA) * self.scale
        if share < SHARE_HANG or seconds > TIMEOUT_S * self.scale:
            return "hang", TIMEOUT_S * self.scale
        return ("500" if share < SHARE_HANG + SHARE_500 else "answer"), seconds

    def seconds(self, row: int) -> float:
        """Of a row's attempts together, one right after the other."""
        total, attempt = 0.0, 0
        while True:
            kind, seconds = self.draw(row, attempt)
            total, attempt = total + seconds, attempt + 1
            if kind == "answer":
                return total


def ideal_wall_s(service: Service, rows: int) -> float:
    """Wall time where exactly K rows are under way, in order, and nothing else takes time."""
    free_s = [0.0] * K
    for row in range(rows):
        heapq.heapreplace(free_s, free_s[0] + service.seconds(row))
    return max(free_s)
