"""Reduces frames to glances, and defines finders, which turn glances into cuts as soon as they are certain.

A glance holds the few numbers that reveal a cut: content score, brightness and a thumbnail. A cut is the number of the
first frame after it. Every finder yields its cuts in ascending order.

Shape letters: H height, W width, C colours (RGB), D thumbnail cells times colours.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Frame

_SAMPLES = 96 * 54  # pixels sampled; the cost grows with them
CELLS = (16, 9)  # of a thumbnail, across and down


@dataclass(eq=False)
class Glance:
    """The few numbers about one frame that finders use."""

    #: PySceneDetect's content score: the mean of |change| of hue, saturation and value (each 0 to 255, hue 0 to 179)
    #: from the frame before; 0 in the first frame. Hue is not taken as a circle, as there.
    content: float
    sample_HWC: Frame  #: pixels picked from the frame on a grid

    @cached_property
    def brightness(self) -> float:
        """The mean of R, G and B, 0 to 255."""
        return sum(cv2.mean(self.sample_HWC)[:3]) / 3

    @cached_property
    def thumbnail_D(self) -> NDArray[np.float32]:
        """16 by 9 cells of the whole frame, 0 to 255; too coarse to see small motion."""
        small = cv2.resize(self.sample_HWC, CELLS, interpolation=cv2.INTER_AREA)
        return np.asarray(small, np.float32).ravel()

    @cached_property
    def _around_NC(self) -> NDArray[np.float32]:
        cells_NC = self.thumbnail_D.reshape(-1, 3)
        around_NC: NDArray[np.float32] = cells_NC - cells_NC.mean(axis=0)  # 20 times as quick as cv2.reduce (2026-11)
        return around_NC

    @cached_property
    def layout_D(self) -> NDArray[np.float32]:
        """The layout of colours in any light: the thumbnail minus its mean, of length 1; 0 if it is flat."""
        return self._around_NC.ravel() / np.float32(max(float(cv2.norm(self._around_NC)), 1.0))

    @property
    def contrast(self) -> float:
        """Root mean square distance of the thumbnail's cells from their mean, 0 to 128."""
        return float(cv2.norm(self._around_NC)) / math.sqrt(self._around_NC.size)


class Eye:
    """Turns frames into glances; remembers only the previous frame."""

    _before_HWC: NDArray[np.uint8] | None = None

    def look(self, frame_HWC: Frame) -> Glance:
        """The frame's glance."""
        sample = pick(frame_HWC)
        colours = np.asarray(cv2.cvtColor(sample, cv2.COLOR_RGB2HSV), dtype=np.uint8)
        before, self._before_HWC = self._before_HWC, colours
        if before is None or before.shape != colours.shape:
            return Glance(0.0, sample)
        return Glance(cv2.norm(colours, before, cv2.NORM_L1) / colours.size, sample)


def pick(frame_HWC: Frame) -> Frame:
    """At most about 96 x 54 pixels of the frame on a grid, in its own proportions.

    They are picked and not averaged: the mean over a grid is an unbiased estimate of the mean over all pixels, while
    averaging first would remove the noise that thresholds rely on.
    """
    height, width = frame_HWC.shape[:2]
    ratio = (_SAMPLES / (height * width)) ** 0.5
    if ratio >= 1:
        return np.ascontiguousarray(frame_HWC)
    size = (max(1, round(width * ratio)), max(1, round(height * ratio)))
    return np.asarray(cv2.resize(frame_HWC, size, interpolation=cv2.INTER_NEAREST), dtype=np.uint8)


class Gradual(int):
    """A cut in the middle of a gradual transition: a dissolve, a fade or a wipe. A plain number is a hard cut."""


class Finder:
    """Finds cuts while frames come."""

    def see(self, glance: Glance) -> list[int]:
        """The cuts that have become certain with this frame."""
        raise NotImplementedError

    def end(self) -> list[int]:
        """The cuts that are left when no more frames come."""
        return []

    def certain(self) -> int:
        """All cuts before this frame have been given."""
        raise NotImplementedError


@dataclass(eq=False)
class Black(Finder):
    """Black of at least `min_frames` is a shot of its own; a shorter stretch inside the video is cut in its middle."""

    black: float  #: brightness, 0 to 255, below which a frame is black
    min_frames: int  #: the length that makes it a shot
    _count: int = 0
    _start: int | None = None

    def see(self, glance: Glance) -> list[int]:
        """See `Finder`; a stretch is undecided until it ends or is long enough."""
        number, self._count = self._count, self._count + 1
        if glance.brightness >= self.black:
            start, self._start = self._start, None
            if start is None:
                return []
            if number - start >= self.min_frames:
                return [Gradual(number)]
            return [Gradual((start + number) // 2)] if start > 0 else []
        if self._start is None:
            self._start = number
        long = self._count - self._start == self.min_frames
        return [Gradual(self._start)] if self._start > 0 and long else []

    def certain(self) -> int:
        undecided = self._start is not None and self._count - self._start < self.min_frames
        return self._start if undecided and self._start is not None else self._count


@dataclass(eq=False)
class MinSpacing(Finder):
    """Another finder's cuts, except those nearer than `min_frames` to the start or to the previous cut."""

    finder: Finder
    min_frames: int
    _last: int = 0

    def see(self, glance: Glance) -> list[int]:
        return self._thin(self.finder.see(glance))

    def end(self) -> list[int]:
        return self._thin(self.finder.end())

    def certain(self) -> int:
        return self.finder.certain()

    def _thin(self, cuts: list[int]) -> list[int]:
        kept = []
        for cut in cuts:
            if cut - self._last >= self.min_frames:
                kept.append(cut)
                self._last = cut
        return kept


@dataclass(eq=False)
class AnyOf(Finder):
    """All cuts of one finder, and those of another that are far enough from them and from each other."""

    first: Finder
    second: Finder  #: its cuts count where no other lies nearer than `min_frames`
    min_frames: int
    _waiting: list[int] = field(default_factory=list)  #: cuts of the second, until the first is certain around them
    _chosen: list[int] = field(default_factory=list)  #: yielded once no earlier cut can come
    _given: list[int] = field(default_factory=list)  #: the last few that were yielded

    def see(self, glance: Glance) -> list[int]:
        self._chosen += self.first.see(glance)
        self._waiting += self.second.see(glance)
        if not self._chosen and not self._waiting:
            return []
        self._choose(self.first.certain())
        certain = self.certain()
        ready = sorted(cut for cut in self._chosen if cut < certain)
        self._chosen = [cut for cut in self._chosen if cut >= certain]
        self._given = [cut for cut in self._given + ready if cut > certain - self.min_frames]
        return ready

    def end(self) -> list[int]:
        self._chosen += self.first.end()
        self._waiting += self.second.end()
        self._choose(max([0, *self._chosen, *self._waiting]) + self.min_frames)
        return sorted(self._chosen)

    def certain(self) -> int:
        certain = min(self.first.certain(), self.second.certain())
        return min(certain, self._waiting[0]) if self._waiting else certain

    def _choose(self, certain: int) -> None:
        """Decide on cuts of the second around which the first is certain."""
        while self._waiting and self._waiting[0] + self.min_frames <= certain:
            cut = self._waiting.pop(0)
            if all(abs(cut - other) >= self.min_frames for other in self._given + self._chosen):
                self._chosen.append(cut)


class Peaks(Finder):
    """Frames whose content score is far above the mean of their neighbours, as in PySceneDetect's AdaptiveDetector.

    Args:
        window: neighbours on each side; with 0, all frames of at least `min_content` are cuts, as in its
            ContentDetector.
        min_content: a lower score is no cut, whatever the neighbours' scores.
    """

    def __init__(self, ratio: float, window: int, min_content: float) -> None:
        self._ratio, self._window, self._min_content = ratio, window, min_content
        self._scores: deque[float] = deque(maxlen=2 * window + 1)
        self._count = 0

    def see(self, glance: Glance) -> list[int]:
        """See `Finder`; `window` frames behind, so the last ones, which have too few neighbours, are no cuts."""
        self._scores.append(glance.content)
        self._count += 1
        if len(self._scores) <= 2 * self._window or (score := self._scores[self._window]) < self._min_content:
            return []
        mean = (sum(self._scores) - score) / max(1, 2 * self._window)
        return [self._count - 1 - self._window] if score >= self._ratio * mean else []

    def certain(self) -> int:
        return max(0, self._count - self._window)
