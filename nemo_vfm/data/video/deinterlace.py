"""Deinterlaces a decoder's frames with bwdif, one frame for each; progressive frames pass unchanged.

bwdif uses the frames before and after, so a frame's pixels depend on whether its neighbours were decoded. For the same
pixels every time, begin one frame early and read one further.
"""

from collections import deque
from collections.abc import Iterator
from fractions import Fraction

import av
import av.error
from av.filter import Graph

from nemo_vfm.core.errors import DataError

Numbered = tuple[int, av.VideoFrame]
_COLOURS = ("colorspace", "color_range", "color_primaries", "color_trc")


def deinterlace(frames: Iterator[Numbered]) -> Iterator[Numbered]:
    """Frames with their numbers; from the first interlaced one on each comes when the next has been decoded."""
    filtered: _Filter | None = None
    before: Numbered | None = None
    error: DataError | None = None
    try:
        for number, frame in frames:
            if filtered is not None and _kind(frame) != filtered.kind:  # of another size: for others to refuse
                yield from filtered.end()
                filtered, before = None, None
            if filtered is None and frame.interlaced_frame:
                filtered = _Filter(frame)
                if before is not None and _kind(before[1]) == filtered.kind:
                    filtered.push(*before, given=True)
            if filtered is None:
                before = number, frame
                yield before
            else:
                filtered.push(number, frame)
                yield from filtered.pop_ready()
    except DataError as damage:  # what was decoded before it is still to be given
        error = damage
    if filtered is not None:
        yield from filtered.end()
    if error is not None:
        raise error


class _Filter:
    """One run of frames of one size and kind through bwdif."""

    def __init__(self, frame: av.VideoFrame) -> None:
        self.kind = _kind(frame)
        self._graph = Graph()
        self._graph.threads = 1  # a process a core, as everywhere
        self._source = self._graph.add_buffer(
            width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1, 25)
        )
        bwdif = self._graph.add("bwdif", "mode=send_frame:parity=auto:deint=interlaced")
        self._sink = self._graph.add("buffersink")
        self._source.link_to(bwdif)
        bwdif.link_to(self._sink)
        self._graph.configure()
        self._waiting: deque[tuple[int, av.VideoFrame, bool]] = deque()
        self._pushed = 0

    def push(self, number: int, frame: av.VideoFrame, *, given: bool = False) -> None:
        """The next frame; `given` ones are only for their neighbours to look at."""
        pts, time_base = frame.pts, frame.time_base
        frame.pts, frame.time_base = (
            self._pushed,
            Fraction(1, 25),
        )  # whatever stamps a file has, the filter sees even ones
        self._source.push(frame)
        frame.pts, frame.time_base = pts, time_base
        self._waiting.append((number, frame, given))
        self._pushed += 1

    def pop_ready(self) -> Iterator[Numbered]:
        """Frames that are ready."""
        while self._waiting:
            try:
                frame = self._sink.pull()
            except (BlockingIOError, av.error.EOFError):
                return
            assert isinstance(frame, av.VideoFrame)
            number, before, given = self._waiting.popleft()
            for name in _COLOURS:  # the filter would have those of the first
                setattr(frame, name, getattr(before, name))
            frame.pts, frame.time_base = before.pts, before.time_base
            if not given:
                yield number, frame

    def end(self) -> Iterator[Numbered]:
        """The rest, when no frame follows."""
        self._source.push(None)
        yield from self.pop_ready()


def _kind(frame: av.VideoFrame) -> tuple[int, int, str]:
    return frame.width, frame.height, frame.format.name
