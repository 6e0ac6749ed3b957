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

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from nemo_vfm.core.types.media_types import Decoder, Frame, Frames
from nemo_vfm.data.video.video_info import VideoInfo


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
    from nemo_vfm.data.video.pyav_reader import PyAVReader  # who names a decoder alone needs no PyAV

    if decoder == "auto" or decoder == "pyav":
        return PyAVReader(source)
    from nemo_vfm.data.video.library_reader import LibraryReader

    return LibraryReader(source, decoder)


def read_all(source: Path | bytes) -> Frames:
    """Every frame, (T, H, W, 3): for short videos. Read in order, which needs no fast random access, so by PyAV."""
    with open_video(source, decoder="pyav") as reader:
        return reader.read(range(reader.info().num_frames))
