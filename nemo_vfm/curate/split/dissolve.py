"""Finds the middles of dissolves, where a picture is the mean of one before and one after it, and of wipes.

A dissolve is (1 - a) A + a B, so its middle is (A + B) / 2 for any A and B. A hard cut shows one or the other there,
and a turning camera a third. Thumbnails are too coarse for what moves inside a shot.
"""

from collections import deque
from dataclasses import dataclass
from itertools import islice

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.curate.split.finder import Finder, Glance, Gradual
from nemo_vfm.curate.split.wipe import WipeLimits, sweep_of, wipe_strangeness

_SCALES_S = (0.25, 0.5, 1.0)  # half of the longest dissolve that each sees
_LOOKS = 4  # for wipes, in half of a scale's length: the middle of a longer one lasts longer
APART_S = 1.0  # a cut that is nearer than a dissolve can be long explains what looks like one


@dataclass(frozen=True, slots=True)
class DissolveLimits:
    """The criteria of a dissolve, chosen on 80 generated films (docs/how-to/video/splitting.md)."""

    jump: float = 15.0  #: mean difference of the pictures before and after, 0 to 255, at least
    strangeness: float = 0.3  #: the middle's distance from their mean as a part of the jump, plus `drift`, at most
    #: weight of how far each of the two moves by itself in the same time, as a part of the jump: a camera that turns
    #: goes on turning, a dissolve is over
    drift: float = 0.1
    #: the strangeness where neither moves, at most, since there is no cause for more; a quarter of the drift is added.
    #: A short turn of the camera between two still views has more.
    still: float = 0.17
    #: the part of the way gone after a quarter of the time, and to go in the last quarter, at most: a shot between two
    #: others may be their mean, too, but it rests
    quarter: float = 0.4
    #: the product of their layouts, -1 to 1, at most: a picture that gets brighter stays like itself
    likeness: float = 0.9
    contrast: float = 8.0  #: of each, 0 to 128, at least: fades to and from a plain colour are another finder's
    #: the largest change from one frame to the next, as a part of the jump, at most: else it was a hard cut
    step: float = 0.5


class Dissolves(Finder):
    """Where the strangeness is least among frames near each other that pass all limits.

    Args:
        fps: frames per second.
        wipes: of wipes, whose jump and steps have the limits of dissolves; None looks for none.
    """

    def __init__(self, fps: float, limits: DissolveLimits, wipes: WipeLimits | None = None) -> None:
        self._limits, self._wipes = limits, wipes
        self._halves = sorted({max(1, round(scale * fps)) for scale in _SCALES_S})
        self._reach = 2 * self._halves[-1]
        self._glances: deque[Glance] = deque(maxlen=2 * self._reach + 1)
        self._steps: deque[float] = deque(maxlen=2 * self._reach)  # from each thumbnail to the next
        self._way: deque[float] = deque(maxlen=2 * self._reach + 1)  # the sum of all steps so far
        self._count = 0
        self._run: list[tuple[float, int]] = []  # (strangeness, frame) of the frames near each other that pass

    def see(self, glance: Glance) -> list[int]:
        """See `Finder`; two seconds behind."""
        if not self._glances:  # the first frame stands for what was before it, the last for what comes after
            self._remember(glance, self._reach)
        self._remember(glance)
        self._count += 1
        middle = self._count - 1 - self._reach
        return self._step(middle) if middle >= 0 else []

    def end(self) -> list[int]:
        """What was waiting for later frames."""
        cuts: list[int] = []
        if self._count:
            self._remember(self._glances[-1], max(0, self._reach - self._count))
        for middle in range(max(0, self._count - self._reach), self._count):
            self._remember(self._glances[-1])
            cuts += self._step(middle)
        return cuts + self._close()

    def certain(self) -> int:
        return self._run[0][1] if self._run else max(0, self._count - self._reach)

    def _remember(self, glance: Glance, times: int = 1) -> None:
        for _ in range(times):
            if self._glances:
                self._steps.append(_distance(self._glances[-1].thumbnail_D, glance.thumbnail_D))
            self._way.append(self._way[-1] + self._steps[-1] if self._way else 0.0)
            self._glances.append(glance)

    def _step(self, middle: int) -> list[int]:
        # Of that frame, `reach` frames back; the least over the scales inside the film, 1 where none passes.
        place, way, jump = self._reach, self._way, self._limits.jump
        # Two pictures are never further apart than the way between them, which is cheaper to know.
        halves = [half for half in self._halves if way[place + half] - way[place - half] >= jump]
        strangeness = min(
            (self._at(place, half) for half in halves if half <= middle < self._count - half), default=1.0
        )
        if strangeness <= self._limits.strangeness:
            self._run.append((strangeness, middle))
        if not self._run:
            return []
        over = middle - self._run[-1][1] > self._halves[-1] // 2 or middle - self._run[0][1] >= self._reach - 1
        return self._close() if over else []

    def _close(self) -> list[int]:
        cuts: list[int] = [Gradual(min(self._run)[1])] if self._run else []
        self._run = []
        return cuts

    def _at(self, place: int, half: int) -> float:
        limits, glances = self._limits, self._glances
        start, stop = glances[place - half], glances[place + half]
        before, after = start.thumbnail_D, stop.thumbnail_D
        jump = _distance(before, after)
        if jump < limits.jump:
            return 1.0
        if max(islice(self._steps, place - half, place + half)) > limits.step * jump:
            return 1.0
        strangeness = _distance(glances[place].thumbnail_D, (before + after) * np.float32(0.5)) / jump
        if strangeness > limits.strangeness:
            if self._wipes is None or self._count % max(1, half // _LOOKS):
                return 1.0
            # A cell as it was before or will be after is half the way from their mean, and others are off by their
            # strangeness at most: cheaper to know.
            off = abs(strangeness - 0.5)
            return self._wipe_strangeness(self._wipes, place, half) if off <= self._wipes.strangeness else 1.0
        far = _distance(glances[place - 2 * half].thumbnail_D, before)
        drift = (far + _distance(glances[place + 2 * half].thumbnail_D, after)) / jump
        if strangeness > limits.still + drift / 4 or not self._differ(start, stop):
            return 1.0
        # No dissolve, if the middle lasts: it is reached early or left late.
        early, late = (glances[place + quarter].thumbnail_D for quarter in (-max(1, half // 2), max(1, half // 2)))
        way = after - before
        max_gone = limits.quarter * float(way @ way)
        rests = float((early - before) @ way) > max_gone or float((after - late) @ way) > max_gone
        return 1.0 if rests else strangeness + limits.drift * drift

    def _wipe_strangeness(self, limits: WipeLimits, place: int, half: int) -> float:
        """The strangeness of a wipe, on the scale of a dissolve's; 1 where it is none."""
        start, middle, stop = (self._glances[place + offset] for offset in (-half, 0, half))
        strangeness, changed = wipe_strangeness(start, middle, stop)
        if strangeness > limits.strangeness or not limits.balance <= changed <= 1 - limits.balance:
            return 1.0
        if (self._run and strangeness / 2 >= min(self._run)[0]) or not self._differ(start, stop):
            return 1.0
        sweep = sweep_of(list(islice(self._glances, place - half, place + half + 1)))
        if sweep.order < limits.order or sweep.explained < limits.explained:
            return 1.0
        return min(self._limits.strangeness, abs(sweep.middle) + strangeness / 2)

    def _differ(self, a: Glance, b: Glance) -> bool:
        """Whether both show something, and not the same."""
        if min(a.contrast, b.contrast) < self._limits.contrast:
            return False
        return float(a.layout_D @ b.layout_D) <= self._limits.likeness


def _distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return float(cv2.norm(a, b, cv2.NORM_L1)) / a.size
