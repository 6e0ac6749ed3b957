"""Times a small, fixed piece of work on this rank's device.

A device that is too hot, or whose cores others use, slows all ranks down. A step's duration does not say which, since
the others wait for it inside their collectives. So each rank multiplies the same matrices now and then, on its own.
"""

import time

import torch

from nemo_vfm.core.device import device, synchronize

FIRST_S, EVERY_S = 10.0, 60.0  # the first steps allocate, compile and warm up
_SIDE = {"cuda": 2048, "cpu": 256}
# 24 MB and some milliseconds of a GPU. Of a core 25 ms: the best of three single products saw nothing of two other
# programs on it, since each was over before its turn was.
_PRODUCTS = {"cuda": 60, "cpu": 64}


class Pulse:
    """Says when it is time, and measures.

    Args:
        first_s: until the first time.
        every_s: between two.
    """

    def __init__(self, *, first_s: float = FIRST_S, every_s: float = EVERY_S) -> None:
        self._next, self._every_s = time.monotonic() + first_s, every_s
        self._matrices: list[torch.Tensor] = []

    def is_due(self) -> bool:
        """Whether it is time again; the clock begins anew."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._every_s
        return True

    @torch.no_grad()
    def seconds(self) -> float:
        """Of one product, the mean of many. What is queued on the device is waited for first."""
        kind = device().type
        a, b, out = self._matrices = self._matrices or _matrices(_SIDE[kind])
        torch.mm(a, b, out=out)  # the first one loads what it needs
        synchronize()
        began = time.perf_counter()
        for _ in range(_PRODUCTS[kind]):
            torch.mm(a, b, out=out)
        synchronize()
        return (time.perf_counter() - began) / _PRODUCTS[kind]


def _matrices(side: int) -> list[torch.Tensor]:
    """Two factors and room for the product; nothing is drawn, since a run's random numbers are its own."""
    dtype = torch.bfloat16 if device().type == "cuda" else torch.float32
    a = torch.arange(side * side, device=device(), dtype=torch.float32).sin().reshape(side, side).to(dtype)
    return [a, a.t().contiguous(), torch.empty_like(a)]
