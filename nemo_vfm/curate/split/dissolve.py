# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Thumbnails in, the middles of dissolves out: where a picture is the mean of another before and another after it.

A dissolve is (1 - a) A + a B, so that half way the picture is (A + B) / 2, whatever A and B are. A hard cut is one or the
other there, and a camera that turns shows something third. Thumbnails are too coarse for what moves inside a shot.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.curate.split.glance import Glance

_SCALES_S = (0.25, 0.5, 1.0)  # half of the longest dissolve that each sees


@dataclass(frozen=True, slots=True)
class Limits:
    """What a dissolve is told by.

    Args:
        jump: mean difference of the pictures before and after, 0 to 255, at least.
        residual: distance of the middle from their mean, as a part of the jump, at most.
        motion: distance that each of them moves in the same time by itself, as a part of half the jump, at most.
        likeness: their correlation, -1 to 1, at most: a picture that only becomes brighter stays like itself.
        contrast: standard deviation of each, at least: fades to and from a plain colour are another finder's.
    """

    jump: float = 12.0
    residual: float = 0.25
    motion: float = 0.8
    likeness: float = 0.85
    contrast: float = 8.0


class Dissolves:
    """Where the residual is least among neighbouring frames that pass all limits.

    Args:
        fps: frames per second.
        limits: see there.
    """

    def __init__(self, fps: float, limits: Limits) -> None:
        self._limits = limits
        self._halves = sorted({max(1, round(scale * fps)) for scale in _SCALES_S})
        self._reach = 2 * self._halves[-1]
        self._thumbnails: deque[NDArray[np.float32]] = deque(maxlen=2 * self._reach + 1)
        self._count = 0
        self._run: list[tuple[float, int]] = []  # (residual, frame) of successive frames that pass

    def see(self, glance: Glance) -> list[int]:
        """See `Finder`; two seconds behind."""
        self._thumbnails.append(glance.thumbnail_D)
        self._count += 1
        middle = self._count - 1 - self._reach
        return self._step(middle) if middle >= 0 else []

    def end(self) -> list[int]:
        """What is left when no frame comes: the last one stays for two seconds."""
        cuts: list[int] = []
        for middle in range(max(0, self._count - self._reach), self._count):
            self._thumbnails.append(self._thumbnails[-1])
            cuts += self._step(middle)
        return cuts + self._close()

    def certain(self) -> int:
        """See `Finder`."""
        return self._run[0][1] if self._run else max(0, self._count - self._reach)

    def _step(self, middle: int) -> list[int]:
        residual = self._residual(middle)
        if residual <= self._limits.residual:
            self._run.append((residual, middle))
            return self._close() if len(self._run) >= self._reach else []
        return self._close()

    def _close(self) -> list[int]:
        cuts = [min(self._run)[1]] if self._run else []
        self._run = []
        return cuts

    def _residual(self, middle: int) -> float:
        """The least over all scales, 1 where no scale passes."""
        return min(self._at(len(self._thumbnails) - 1 - self._reach, half) for half in self._halves)

    def _at(self, place: int, half: int) -> float:
        def near(number: int) -> NDArray[np.float32]:
            return self._thumbnails[max(0, number)]

        before, after = near(place - half), near(place + half)
        jump = float(np.abs(after - before).mean())
        if jump < self._limits.jump:
            return 1.0
        residual = float(np.abs(near(place) - (before + after) / 2).mean()) / jump
        if residual > self._limits.residual:
            return 1.0
        moved = max(np.abs(before - near(place - 2 * half)).mean(), np.abs(after - near(place + 2 * half)).mean())
        if moved > self._limits.motion * jump / 2:
            return 1.0
        return residual if self._differ(before, after) else 1.0

    def _differ(self, before: NDArray[np.float32], after: NDArray[np.float32]) -> bool:
        """Whether both show something, and not the same."""
        a, b = before - before.mean(), after - after.mean()
        spread_a, spread_b = float(a.std()), float(b.std())
        if min(spread_a, spread_b) < self._limits.contrast:
            return False
        return float((a * b).mean()) <= self._limits.likeness * spread_a * spread_b
