"""Holds the small frames of one clip, and gives stages the frames that they request, by number.

Shape letters: T frames, H height, W width, C colours (RGB), B blocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Frames, Transfer


def luma(frames_THWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(T, H, W)."""
    return np.stack([np.asarray(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), dtype=np.uint8) for frame in frames_THWC])


@dataclass(frozen=True, slots=True)
class MotionVectors:
    """The motion that the encoder stored for one frame, as FFmpeg exports it."""

    width: int  #: of the coded picture, in pixels
    height: int  #: of the coded picture, in pixels
    #: a row a vector, with FFmpeg's fields: source, w, h, src_x, src_y, dst_x, dst_y, flags, motion_x, motion_y,
    #: motion_scale; no row in a frame that is coded by itself
    blocks_B: NDArray[np.void]


@dataclass(frozen=True, slots=True)
class DecoderReport:
    """What the decoder reported about a clip's frames, mostly as shares of them."""

    corrupt: float = 0.0  #: damaged, or predicted from one that is
    interlaced: float = 0.0  #: stored interlaced
    repeated: float = 0.0  #: repeated when the clip is written, since the next frame comes late
    transfer: Transfer = "sdr"  #: of the first frame of HDR, as it is stored; sdr where there is none


class ClipFrames:
    """One clip as stages see it: small frames in RGB, picked by number, 0 being the clip's first.

    Args:
        fps: frames per second of the source.
        read: gives the frames with these ascending numbers, (T, H, W, 3) uint8.
        vectors: gives the motion vectors of frames with these ascending numbers; None where the codec has none or where
            no stage needs them (see `stage.ReadsVectors`).
        decoder_report: what the decoder reported about the frames.
        is_image: it is a still image: it has no time, and a stage that measures motion gives it no score.
    """

    def __init__(
        self,
        num_frames: int,
        fps: float,
        read: Callable[[Sequence[int]], Frames],
        vectors: Callable[[Sequence[int]], list[MotionVectors]] | None = None,
        decoder_report: DecoderReport | None = None,
        *,
        is_image: bool = False,
    ) -> None:
        assert num_frames >= 1 and fps > 0
        self.num_frames, self.fps, self.is_image = num_frames, fps, is_image
        self.decoder_report = decoder_report or DecoderReport()
        self._read, self._vectors = read, vectors
        self._rgb: dict[int, Frames] = {}
        self._luma: dict[int, Frames] = {}

    @classmethod
    def of(cls, frames_THWC: Frames, fps: float) -> Self:
        """A clip that is already in memory."""
        return cls(len(frames_THWC), fps, lambda numbers: frames_THWC[list(numbers)])

    @property
    def duration_s(self) -> float:
        """How long the clip lasts at its mean rate."""
        return self.num_frames / self.fps

    def frames(self, numbers: Sequence[int]) -> Frames:
        """These frames in this order, (T, H, W, 3) RGB; a number may come twice."""
        missing = sorted(set(numbers) - self._rgb.keys())
        if missing:
            self._rgb.update(zip(missing, self._read(missing), strict=True))
        return np.stack([self._rgb[number] for number in numbers])

    def luma(self, numbers: Sequence[int]) -> Frames:
        """BT.601 luma of these frames, full range, (T, H, W)."""
        missing = sorted(set(numbers) - self._luma.keys())
        for number, frame in zip(missing, self.frames(missing) if missing else (), strict=True):
            self._luma[number] = np.asarray(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), dtype=np.uint8)
        return np.stack([self._luma[number] for number in numbers])

    def motion_vectors(self, numbers: Sequence[int]) -> list[MotionVectors] | None:
        """The motion vectors of these frames; None where the codec has none or no stage needs them."""
        return None if self._vectors is None else self._vectors(sorted(set(numbers)))

    def evenly(self, count: int) -> list[int]:
        """At most `count` frame numbers, spread from the first frame to the last."""
        return sorted({int(number) for number in np.linspace(0, self.num_frames - 1, count).round()})

    def per_second(self, rate: float, at_most: int) -> list[int]:
        """Frame numbers `rate` a second from the first frame on; `at_most` spread evenly where that would be more."""
        steps = np.arange(0, self.num_frames, max(1.0, self.fps / rate)).round()
        numbers = sorted({int(number) for number in steps if number < self.num_frames})
        if len(numbers) > at_most:
            numbers = [numbers[int(place)] for place in np.linspace(0, len(numbers) - 1, at_most).round()]
        return numbers

    def pairs(self, count: int) -> list[int]:
        """2 * `count` frame numbers: 2k and 2k + 1 are neighbours, pairs spread evenly; short clips repeat some.

        In a clip of one frame both are that frame.
        """
        steps = self.num_frames - 1
        firsts = [(2 * k + 1) * steps // (2 * count) for k in range(count)]
        return [number for first in firsts for number in (first, min(first + 1, steps))]
