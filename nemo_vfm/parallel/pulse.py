# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""This rank's device in, how long the same small work takes it right now out.

A device that is too hot, or whose cores others use, slows all ranks down, and the clock of a step says nothing about
which: the others wait for it inside their collectives. So each multiplies the same matrices now and then, with nobody.
"""

import time

import torch

from nemo_vfm.core.device import device, synchronize

FIRST_S, EVERY_S = 10.0, 60.0  # the first steps allocate, compile and warm up
_ROUNDS = 3  # the best counts: what the system does meanwhile is not the device's
_SIDE = {"cuda": 2048, "cpu": 256}  # 24 MB and 1.2 ms of an H100's time in all; 3 ms of a core's
_PRODUCTS = {"cuda": 20, "cpu": 1}  # of a round: a single one on a GPU is over before a clock sees it


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
        """Of the best of a few rounds. What is queued on the device is waited for first."""
        return min(self._round() for _ in range(_ROUNDS))

    def _round(self) -> float:
        kind = device().type
        a, b, out = self._matrices = self._matrices or _matrices(_SIDE.get(kind, 256))
        synchronize()
        began = time.perf_counter()
        for _ in range(_PRODUCTS.get(kind, 1)):
            torch.mm(a, b, out=out)
        synchronize()
        return time.perf_counter() - began


def _matrices(side: int) -> list[torch.Tensor]:
    """Two factors and room for the product; nothing is drawn, since a run's random numbers are its own."""
    dtype = torch.bfloat16 if device().type == "cuda" else torch.float32
    a = torch.arange(side * side, device=device(), dtype=torch.float32).sin().reshape(side, side).to(dtype)
    return [a, a.t().contiguous(), torch.empty_like(a)]
