"""Decodes each frame of a video once, small and in order, and remembers the frames of recent spans.

The scaler resizes and converts to RGB in one pass: 0.5 ms per frame of 854x480. RGB at full size and an area mean take
3.5 ms (2 cores, 2026-11). Shape letters: T frames, H height, W width.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import av
import cv2
import numpy as np
from av.video.reformatter import VideoReformatter

from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.media_types import Frame, Span
from nemo_vfm.curate.record.footage import ClipFrames, DecoderReport, MotionVectors
from nemo_vfm.data.video.codecs import Decoding
from nemo_vfm.data.video.pyav_reader import PyAVReader
from nemo_vfm.data.video.tone_map import rgb_of
from nemo_vfm.data.video.video_info import VideoInfo, rate_of, repeated_ratio
from nemo_vfm.restore.letterbox import Borders, Picture, find_picture

# Between looks at the borders, 7 ms at 1080p; by frame number, since stretches of a video begin anywhere.
_BORDERS_S = 0.5
_NO_VECTORS = frozenset({"hevc", "vp8", "vp9", "av1", "mjpeg", "prores", "ffv1", "png", "gif", "rawvideo"})
_FIELDS = {"source": "i4", "w": "u1", "h": "u1", "src_x": "i2", "src_y": "i2", "dst_x": "i2", "dst_y": "i2",
           "flags": "u8", "motion_x": "i4", "motion_y": "i4", "motion_scale": "u2"}  # fmt: skip
_NONE = np.empty(0, np.dtype(list(_FIELDS.items())))
_LATE_S = 0.5  # a table often goes by a container's word, which counts sound that ends after the last picture


@no_component
class Walk:
    """Decodes a video once, and holds small frames until they are taken as footage.

    Args:
        side_px: frames are made so small that their short side is at most this.
        vectors: whether motion vectors are held, too, if the codec has them.
        max_held_bytes: limit of what is held; footage beyond it is decoded again.
        tick: called with the number of frames since the last call.
        start: the first frame to decode.
    """

    def __init__(
        self,
        path: Path,
        *,
        side_px: int,
        vectors: bool = False,
        max_held_bytes: int = 512 << 20,
        tick: Callable[[int], None] = lambda count: None,
        decode: Decoding = "cpu",
        start: int = 0,
    ) -> None:
        self._path, self._wants_vectors, self._max_held_bytes, self._tick = path, vectors, max_held_bytes, tick
        self._decode: Decoding = decode
        self._reader = PyAVReader(path, vectors=vectors, decode=decode)
        self._side_px, self._turns = side_px, self._reader.info().rotation_deg // 90
        self._small_sizes: dict[tuple[int, int], tuple[int, int]] = {}  # by stored size
        self._scaler = VideoReformatter()  # keeps its tables from frame to frame
        self._sizes: list[tuple[int, tuple[int, int]]] = []  # of each run of frames, its first number and stored size
        codec, on_cpu = self._reader.info().codec, self._reader.decode == "cpu"
        self._has_vectors = vectors and on_cpu and codec not in _NO_VECTORS
        self._held: deque[_HeldFrame] = deque()
        self._borders: deque[tuple[int, Borders]] = deque()
        self.held_bytes = 0
        self._first = start  # the number of the first frame that is held
        self._start = self.num_walked = start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.clear()
        self._borders.clear()
        self._reader.close()

    @property
    def info(self) -> VideoInfo:
        """What the video holds."""
        return self._reader.info()

    def frames(self, stop: int | None = None) -> Iterator[Frame]:
        """Every frame up to `stop`, small, in RGB.

        Raises:
            DataError: at the first frame that cannot be decoded, or is of another size than the file's first.
        """
        for first, frame in self.runs(stop):
            if self._sizes[-1][1] != self._reader.stored:
                raise self._reader.new_size(self._reader.stored, first, self._sizes[-1][1])
            yield frame

    def runs(self, stop: int | None = None, *, spans: Sequence[Span] | None = None) -> Iterator[tuple[int, Frame]]:
        """Every frame up to `stop`, or those of spans that ascend by their start, small, in RGB.

        Each comes with the number of the first of its run, all of one size.

        Raises:
            DataError: at the first frame that cannot be decoded.
        """
        stop = self.info.num_frames if stop is None else stop
        numbers: Sequence[int] = range(self._start, stop)
        if spans is not None:  # the frames of all of them, each once
            numbers = found = list[int]()
            for first, last in spans:
                found += range(max(first, found[-1] + 1) if found else first, last)
        for number, frame in self._reader.decode_at(numbers, past_losses=True):
            stored = frame.width, frame.height
            if not self._sizes or self._sizes[-1][1] != stored:
                self._sizes.append((number, stored))
            if number != self._first + len(self._held):  # frames before a gap have been taken
                while self._held:
                    self._forget()
                self._first = number
            held = self._shrink(frame)
            if self.held_bytes + held.num_bytes > self._max_held_bytes:
                while self._held:
                    self._forget()
            self._held.append(held)
            self.held_bytes += held.num_bytes
            if number % max(1, round(_BORDERS_S * self.info.fps)) == 0:
                luma = cv2.cvtColor(self._reader.picture(frame), cv2.COLOR_RGB2GRAY)
                self._borders.append((number, Borders.of(np.asarray(luma, dtype=np.uint8))))
            self.num_walked = number + 1
            self._tick(1)
            yield self._sizes[-1][0], held.small

    def has_one_size(self, span: Span) -> bool:
        """Whether all frames of a decoded span are of one size."""
        return not any(span[0] < first < span[1] for first, _ in self._sizes)

    def size(self, span: Span) -> tuple[int, int]:
        """Width and height of a decoded span, upright and in square pixels."""
        stored = next(stored for first, stored in reversed(self._sizes) if first <= span[0])
        width, height = self._reader.shown_size(*stored)
        return (height, width) if self.info.rotation_deg % 180 else (width, height)

    def footage(self, span: Span) -> ClipFrames:
        """The footage of a decoded span, which must not precede the one requested last: earlier frames are released."""
        while self._held and self._first < span[0]:
            self._forget()
        is_held = self._first <= span[0]
        held = [self._held[place] for place in range(span[1] - span[0])] if is_held else []

        def pick(numbers: Sequence[int]) -> list[_HeldFrame]:
            if is_held:
                return [held[number] for number in numbers]
            # With a second decoder, since the first is in the middle of the video.
            with PyAVReader(self._path, vectors=self._wants_vectors, decode=self._decode) as reader:
                wanted = [span[0] + number for number in numbers]
                return [self._shrink(frame) for _, frame in reader.decode_at(wanted, past_losses=True)]

        numbers, info = range(*span), self.info
        corrupt, interlaced = map(self._reader.is_corrupt, numbers), map(self._reader.is_interlaced, numbers)
        hdr = (transfer for number in numbers if (transfer := self._reader.transfer(number)) != "sdr")
        report = DecoderReport(
            sum(corrupt) / len(numbers), sum(interlaced) / len(numbers), repeated_ratio(info, span), next(hdr, "sdr")
        )
        return ClipFrames(
            span[1] - span[0],
            rate_of(info, span),
            lambda numbers: np.stack([held.small for held in pick(numbers)]),
            (lambda numbers: [held.vectors for held in pick(numbers)]) if self._has_vectors else None,
            report,
        )

    def picture(self, span: Span) -> Picture:
        """The picture inside bars, in a decoded span that does not precede the one requested last.

        Borders are measured every half second, so the result may be unknown for a shorter span.
        """
        while self._borders and self._borders[0][0] < span[0]:
            self._borders.popleft()
        borders = [found for number, found in self._borders if number < span[1]]
        return find_picture(Borders.combine(borders)) if borders else Picture(None, None)

    def _forget(self) -> None:
        self.held_bytes -= self._held.popleft().num_bytes
        self._first += 1

    def _shrink(self, frame: av.VideoFrame) -> "_HeldFrame":
        """The frame made small, in RGB and upright, and its motion vectors."""
        found = frame.side_data.get("MOTION_VECTORS") if self._has_vectors else None
        vectors = MotionVectors(frame.width, frame.height, _NONE if found is None else found.to_ndarray())
        # Scaled, in planes: straight to rgb24 takes 1.6 times as long and halves the colour's width. Not scaled, 4:2:0
        # to planes leaves the last columns of half of all widths unwritten, and takes three times as long (2026-11).
        stored = frame.width, frame.height
        if stored not in self._small_sizes:
            shown = self._reader.shown_size(*stored)
            ratio = min(1.0, self._side_px / min(shown))
            self._small_sizes[stored] = max(1, round(shown[0] * ratio)), max(1, round(shown[1] * ratio))
        width, height = size = self._small_sizes[stored]
        form = "rgb24" if stored == size else "gbrp"
        small = rgb_of(frame, self._scaler, sdr_format=form, width=width, height=height, interpolation="AREA")
        upright = np.ascontiguousarray(np.rot90(small, self._turns) if self._turns else small)
        return _HeldFrame(upright, vectors)


class _HeldFrame(NamedTuple):
    small: Frame
    vectors: MotionVectors

    @property
    def num_bytes(self) -> int:
        """Vectors count, too: for a 4K frame they take several times as much as its small picture."""
        return int(self.small.nbytes + self.vectors.blocks_B.nbytes)


def frames_of(info: VideoInfo, start_s: float, end_s: float | None) -> tuple[Span, str | None]:
    """The frames that begin in a span, and why some are missing; None if none are.

    Seconds count from the first frame. A time is that of the frame that begins at most half a frame before it: so
    rounded seconds, such as 0.067 for frame 2 of 30 a second, mean the same frame. A span has at least one frame.

    Args:
        end_s: where it ends; None is the end of the video.
    """
    first = _frame_at(info, start_s)
    last = info.num_frames if end_s is None else _frame_at(info, end_s)
    is_cut_off = info.missing_frames > info.before_keyframe
    if not is_cut_off and info.num_frames < last <= _frame_at(info, _seconds(info, info.num_frames) + _LATE_S):
        last = info.num_frames
    span = first, max(first + 1, last)
    half_s = float(info.frame_ticks * info.time_base) / 2
    if first in info.holes and end_s is not None and end_s < _seconds(info, first) - half_s:
        span = first - 1, first + 1  # nothing is shown in it: no frame from behind the hole stands in
    if span[1] <= info.num_frames:
        hole = next((hole for hole in info.holes if span[0] < hole < span[1]), None)
        if hole is None:
            return span, None
        gap = (info.end_pts(hole - 1), info.stamp(hole))
        begins_s, ends_s = (float((pts - info.pts[0]) * info.time_base) for pts in gap)
        return span, f"it spans a gap: there are no frames from {begins_s:.2f} s to {ends_s:.2f} s"
    there_s = _seconds(info, info.num_frames + info.missing_frames)
    end = "its end" if end_s is None else f"{end_s:g} s"
    lasts = f"it requests {start_s:g} s to {end}, but the video lasts {there_s:.2f} s"
    return span, info.why_incomplete() if span[1] <= info.num_frames + info.missing_frames else lasts


def _seconds(info: VideoInfo, frame: int) -> float:
    return float((info.stamp(frame) - info.pts[0]) * info.time_base)


def _frame_at(info: VideoInfo, seconds: float) -> int:
    """The first frame that begins at this time or later, or earlier by less than half a frame."""
    stamp = info.pts[0] + seconds / float(info.time_base)
    step = info.frame_ticks
    if stamp > info.stamp(info.num_frames):
        return info.num_frames + round((stamp - info.stamp(info.num_frames)) / step)
    at = bisect_left(range(info.num_frames + 1), stamp, key=info.stamp)
    before = info.stamp(at - 1) if at else stamp - step
    return at - 1 if stamp - before < min(step, info.stamp(at) - before) / 2 else at
