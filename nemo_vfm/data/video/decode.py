"""Opens a video file or its bytes: reads its properties, its frames by index, or its frames in order.

Three readers share one protocol: PyAV reads everything, decord and torchcodec read frames by index where they are asked
for. They agree on frame index and time stamp, and on pixels within 2/255 (equal on all we tried, BT.601 and BT.709).
Rotation is applied once, pixels are made square, interlaced frames progressive, and HDR is tone-mapped to SDR (the last
three by PyAV alone).

Damage: a file that cannot be opened raises DataError from `open_video` or `info`. From a truncated file the whole
frames are read, and `missing_frames` says how many are lost. Damage inside raises DataError at that position: `frames`
yields the frames before it first.

Shape letters: T frames, H height, W width.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import warn_once
from nemo_vfm.core.types.media_types import Frame, Frames, Span, Transfer

Decoder = Literal["auto", "pyav", "decord", "torchcodec"]

MAX_FRAME_PX = 8192 * 8192
MAX_FRAMES = 10_000_000
MAX_READ_BYTES = 8 << 30
_HOLE_STEPS, _HOLE_S = 5, 0.5

# What FFmpeg 4, inside decord 0.6, decodes well. AV1 is the one that matters and is not here.
_DECORD_CODECS = frozenset({"h264", "hevc", "vp8", "vp9", "mpeg4", "mpeg2video", "mjpeg"})


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


class VideoReader(AbstractContextManager["VideoReader"], Protocol):
    """An open video. Not for two threads at once; after a fork each process opens its own."""

    def info(self) -> VideoInfo:
        """What the video holds; the packets are walked once, nothing is decoded."""
        ...

    def read(self, indices: Sequence[int]) -> Frames:
        """The frames with these indices, in this order, (T, H, W, 3) RGB.

        Raises:
            DataError: a frame cannot be decoded, or they are not all of one size.
            UserError: an index is outside the video, or the frames would fill more than MAX_READ_BYTES.
        """
        ...

    def frames(self, start: int = 0, stop: int | None = None) -> Iterator[Frame]:
        """Frames `start` to `stop` one after the other, each (H, W, 3) RGB.

        Raises:
            DataError: at the first frame that cannot be decoded, or is of another size than the one before it, after
                those before it were given.
        """
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


def open_video(source: Path | bytes, decoder: Decoder = "auto") -> VideoReader:
    """Open a video with the named reader. `auto` is PyAV, which took the least CPU time wherever we measured.

    Of a video that decord or torchcodec cannot read, PyAV gives the frames, and says so once for each reason. Where
    the named one is not installed, the first `read` says so.

    Raises:
        DataError: this is not a video we can read.
        UserError: there is no such file.
    """
    from nemo_vfm.data.video.pyav_reader import PyAVReader

    base = PyAVReader(source)
    if decoder == "auto" or decoder == "pyav":
        return base
    from nemo_vfm.data.video.library_reader import LibraryReader

    if reason := "several streams of pictures" if base.has_other_streams() else _why_pyav(base.info(), decoder):
        warn_once(f"some videos are read by PyAV, because {decoder} cannot read them: {reason}")
        return base
    return LibraryReader(source, base, decoder)


def _why_pyav(info: VideoInfo, library: str) -> str | None:
    """Why a library is not asked for the frames."""
    if library == "decord" and info.codec not in _DECORD_CODECS:
        return f"codec {info.codec}"
    if info.missing_frames:
        return "a file with missing frames"
    if info.transfer != "sdr":
        return f"HDR ({info.transfer.upper()}), which it does not tone-map"
    if not info.is_square:
        return "pixels that are not square"
    return "interlaced frames" if info.is_interlaced else None


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


def read_all(source: Path | bytes) -> Frames:
    """Every frame, (T, H, W, 3): for short videos. Read in order, which needs no fast random access, so by PyAV."""
    with open_video(source, decoder="pyav") as reader:
        return reader.read(range(reader.info().num_frames))
