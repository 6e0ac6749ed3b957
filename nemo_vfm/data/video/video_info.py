"""Tells what a video holds: its frames, their time stamps, the holes between them, and one constant rate for them."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.media_types import Span, Transfer

MAX_FRAME_PX = 8192 * 8192
MAX_FRAMES = 10_000_000
MAX_READ_BYTES = 8 << 30
_HOLE_STEPS, _HOLE_S = 5, 0.5


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What a video holds, upright and in square pixels."""

    num_frames: int  #: frames that can be shown, counted from the packets and not from the container's word
    fps: float  #: mean frames per second, without holes
    width: int  #: square pixels, after rotation, of the first frame
    height: int  #: the same
    codec: str  #: FFmpeg's name of the codec, such as h264
    duration_s: float  #: from the first frame until the last one ends, holes included
    rotation_deg: int  #: how far the stored picture is turned counter-clockwise to be upright: 0, 90, 180 or 270
    time_base: Fraction  #: seconds a unit of pts
    pts: tuple[int, ...]  #: presentation time stamp of each frame, ascending
    #: more that should be there and cannot be shown: the file was cut short, or begins between keyframes
    missing_frames: int = 0
    is_square: bool = True  #: whether pixels are square as they are stored
    is_interlaced: bool = False  #: whether its first frame is stored interlaced
    #: of the missing frames, those that are there and cannot be decoded, since the keyframe that they refer to is not
    before_keyframe: int = 0
    holes: tuple[int, ...] = ()  #: the frames before which the time stamps leave a hole, ascending; see `holes_in`
    #: what the values of its first frame mean as it is stored: frames are given in SDR in any case
    transfer: Transfer = "sdr"

    @property
    def frame_ticks(self) -> int:
        """How long one frame lasts at the mean rate, in units of pts."""
        return max(1, round(1 / (self.fps * float(self.time_base))))

    def stamp(self, frame: int) -> int:
        """When a frame begins, also one that is missing at the end; the one after the last begins where that ends."""
        if frame < self.num_frames:
            return self.pts[frame]
        return self.pts[-1] + (frame - self.num_frames + 1) * self.frame_ticks

    def end_pts(self, frame: int) -> int:
        """The time stamp at which a frame ends: the next one's; one frame's time after the last, and before a hole."""
        place = bisect_left(self.holes, frame + 1)
        if self.holes[place : place + 1] == (frame + 1,):
            return self.pts[frame] + self.frame_ticks
        return self.stamp(frame + 1)

    def parts(self) -> list[Span]:
        """The frames between holes; nothing that moves, and no clip, goes on from one part to the next."""
        return list(pairwise((0, *self.holes, self.num_frames)))

    def longest_part(self) -> Span:
        """The first of the longest parts: what training takes of a film."""
        return max(self.parts(), key=lambda part: part[1] - part[0])

    def why_incomplete(self) -> str:
        """What is missing, as a sentence without a name."""
        cut_off = self.missing_frames - self.before_keyframe
        there = self.num_frames + self.before_keyframe
        reasons = []
        if self.before_keyframe:
            reasons.append(f"has {self.before_keyframe:,} frames without their keyframe, which cannot be decoded")
        if cut_off:
            reasons.append(
                f"is truncated: the container declares {there + cut_off:,} frames, only {self.num_frames:,} decode"
            )
        return ", and ".join(reasons)


def holes_in(pts: Sequence[int], time_base: Fraction) -> tuple[int, ...]:
    """The frames that come late: by more than half a second and by more than five usual steps.

    A recording that was paused has such holes, and a screen that stands still and sends no frames. Both limits count:
    phones vary their steps up to 0.3 s, and a slide show of one picture a second has no hole.
    """
    steps_s = np.diff(np.asarray(pts, np.float64)) * float(time_base)
    if not len(steps_s):
        return ()
    longest_s = max(_HOLE_S, _HOLE_STEPS * float(np.median(steps_s)))
    return tuple(int(place) + 1 for place in np.flatnonzero(steps_s > longest_s + 1e-6))


def rate_of(info: VideoInfo, span: Span) -> float:
    """Frames per second: the file's, or the span's own where they would end more than half a frame apart.

    So as many frames last as long as the time stamps say, also where a file changes its rate on the way.
    """
    num_frames = span[1] - span[0]
    seconds = float((info.end_pts(span[1] - 1) - info.pts[span[0]]) * info.time_base)
    return info.fps if abs(seconds * info.fps - num_frames) <= 0.5 else num_frames / seconds


def times_shown(info: VideoInfo, span: Span) -> list[int]:
    """How often each frame of the span comes in as many ticks of its rate: 1 wherever stamps are within half a tick.

    Of a variable rate some come again and others not at all; the sum is the number of frames.
    """
    num_frames = span[1] - span[0]
    stamps = np.asarray(info.pts[slice(*span)], np.int64)
    seconds = (stamps - stamps[0]) * float(info.time_base)
    halves = (np.arange(num_frames) + 0.5) / rate_of(info, span)
    seen = np.searchsorted(seconds, halves) - 1
    return [int(count) for count in np.bincount(seen, minlength=num_frames)]


def repeated_ratio(info: VideoInfo, span: Span) -> float:
    """The share of the ticks at which nothing new is seen."""
    return float(np.mean([count == 0 for count in times_shown(info, span)]))


def name_of(source: Path | bytes) -> str:
    """How messages call a source."""
    return f"{len(source):,} bytes of video" if isinstance(source, bytes) else str(source)


def check_indices(indices: Sequence[int], info: VideoInfo) -> None:
    """Refuse frames that are not there, and more than memory should hold."""
    outside = [index for index in indices if not 0 <= index < info.num_frames]
    if outside:
        raise UserError(f"frame {outside[0]} does not exist; the video has frames 0 to {info.num_frames - 1}")
    size = len(indices) * info.width * info.height * 3
    if size > MAX_READ_BYTES:
        raise UserError(
            f"{len(indices)} frames of {info.width}x{info.height} fill {size:,} bytes, more than {MAX_READ_BYTES:,}; "
            "read fewer at once or use frames()"
        )


def check_size(width: int, height: int, name: str) -> None:
    """Refuse pictures that no camera makes before memory is spent on them."""
    if not width * height:  # which is also what a decoder says that was told not to make larger ones
        raise DataError(
            f"{name} has frames of more than {MAX_FRAME_PX:,} pixels, or without a size; smaller ones were expected"
        )
    if width * height > MAX_FRAME_PX:
        raise DataError(f"{name} has frames of {width}x{height}, expected 1 to {MAX_FRAME_PX:,} pixels")
