# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Frames in, spans of shots out: hard cuts by PySceneDetect, fades through black by us, then a longest length."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal

import cv2
import numpy as np

from nemo_vfm.core.optional import require
from nemo_vfm.curate.stage import Frame, Span


class AdaptiveSplit:
    """Cuts where a frame differs from the one before far more than its neighbours do from theirs.

    PySceneDetect's AdaptiveDetector gives the hard cuts; its settings here are the best of its authors' sweep on
    BBC and AutoShot. It does not see slow fades, so stretches of black are cut by brightness: a long one is a
    shot of its own, which a rule can drop, a short one is cut in its middle. We feed it frames from our own
    decoder: its frame numbers are then ours.

    Args:
        ratio: difference of a frame over the mean of its neighbours' that makes a cut.
        window: neighbours on each side.
        min_length_s: two cuts are never nearer than this, in seconds.
        max_length_s: longer shots are cut into pieces of this length, in seconds.
        short_tail: what remains of a long shot and is shorter than `min_tail_s`: merge it into the piece before
            it, or leave it, so that a rule on duration_s can drop it.
        min_tail_s: in seconds.
        black: mean of R, G and B, 0 to 255, under which a frame is black.
    """

    def __init__(
        self,
        *,
        ratio: float = 3.5,
        window: int = 3,
        min_length_s: float = 0.6,
        max_length_s: float = 20.0,
        short_tail: Literal["merge", "leave"] = "merge",
        min_tail_s: float = 1.0,
        black: float = 12.0,
    ) -> None:
        if ratio <= 1 or window < 1:
            raise ValueError(f"ratio must be above 1 and window at least 1, got {ratio} and {window}")
        if not 0 <= min_length_s < max_length_s or not 0 <= min_tail_s < max_length_s:
            raise ValueError(
                f"min_length_s {min_length_s} and min_tail_s {min_tail_s} must be below max_length_s {max_length_s}"
            )
        self.ratio, self.window, self.black = ratio, window, black
        self.min_length_s, self.max_length_s = min_length_s, max_length_s
        self.short_tail, self.min_tail_s = short_tail, min_tail_s

    def spans(self, frames: Iterable[Frame], *, fps: float) -> Iterator[Span]:
        """See `Splitter.spans`; no frame gives no span."""
        min_frames = max(1, round(self.min_length_s * fps))
        hard, brightness = self._look(frames, fps, min_frames)
        cuts = join_cuts(hard, black_cuts(brightness, self.black, min_frames), min_frames)
        shots = list(pairwise([0, *(cut for cut in cuts if 0 < cut < len(brightness)), len(brightness)]))
        longest = max(1, math.floor(self.max_length_s * fps + 1e-6))
        tail = round(self.min_tail_s * fps) if self.short_tail == "merge" else 0
        yield from (piece for shot in shots if shot[1] > shot[0] for piece in pieces(shot, longest, tail))

    def _look(self, frames: Iterable[Frame], fps: float, min_frames: int) -> tuple[list[int], list[float]]:
        """Hard cuts, and the mean of R, G and B of every frame."""
        require("scenedetect", install="scenedetect-headless", purpose="Cutting videos into shots")
        from scenedetect import AdaptiveDetector, FrameTimecode

        detector = AdaptiveDetector(self.ratio, min_scene_len=min_frames, window_width=self.window)
        cuts, brightness = [], []
        for index, frame in enumerate(frames):
            small = _shrink(frame)
            brightness.append(float(small.mean()))
            cuts += detector.process_frame(FrameTimecode(index, fps=float(fps)), cv2.cvtColor(small, cv2.COLOR_RGB2BGR))
        return [cut.frame_num for cut in cuts], brightness


def _shrink(frame: Frame, width_px: int = 256) -> Frame:
    """At most `width_px` wide, about what the detector's thresholds were chosen at."""
    height, width = frame.shape[:2]
    if width <= width_px:
        return frame
    size = (width_px, max(1, round(height * width_px / width)))
    return np.asarray(cv2.resize(frame, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def black_cuts(brightness: Sequence[float], black: float, min_frames: int) -> list[int]:
    """Cuts around black stretches of at least `min_frames`, and in the middle of shorter ones inside the video."""
    dark = np.array([False, *(value < black for value in brightness), False])
    edges = np.flatnonzero(dark[1:] != dark[:-1]).tolist()
    cuts: list[int] = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        if stop - start >= min_frames:
            cuts += [start, stop]
        elif start > 0 and stop < len(brightness):
            cuts.append((start + stop) // 2)
    return cuts


def join_cuts(hard: Iterable[int], fades: Iterable[int], min_frames: int) -> list[int]:
    """All hard cuts, and those fades that are at least `min_frames` away from them and from each other."""
    cuts = sorted(set(hard))
    for fade in fades:
        if all(abs(fade - cut) >= min_frames for cut in cuts):
            cuts.append(fade)
    return sorted(cuts)


def pieces(shot: Span, longest: int, tail: int) -> list[Span]:
    """The shot in pieces of `longest` frames; a last piece shorter than `tail` joins the one before it."""
    first, last = shot
    starts = list(range(first, last, longest))
    if len(starts) > 1 and last - starts[-1] < tail:
        starts.pop()
    return list(pairwise([*starts, last]))
