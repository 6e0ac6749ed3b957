"""Reads frames by index with decord or torchcodec, and with PyAV what they cannot read."""

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nemo_vfm.core.errors import DataError, MissingPackage
from nemo_vfm.core.log import warn_once
from nemo_vfm.core.optional import require
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.media_types import Frame, Frames
from nemo_vfm.data.video.pyav_reader import PyAVReader
from nemo_vfm.data.video.video_info import check_indices

Library = Literal["decord", "torchcodec"]

# Neither library's FFmpeg can be told which formats it may take, and it takes "#EXTM3U" in a .mp4 for a playlist:
# MPEG-TS with such lines in front, which PyAV reads as MPEG-TS, made decord open other files. What begins like these
# is no playlist.
_BEGINNINGS = ((4, b"ftyp"), (4, b"moov"), (4, b"mdat"), (4, b"wide"), (0, b"\x1a\x45\xdf\xa3"))

# decord aborts the process when a reader crosses a fork, even when it is only freed there: a child keeps it unused.
_inherited: list[Any] = []
# What FFmpeg 4, inside decord 0.6, decodes well. AV1 is the one that matters and is not here.
_DECORD_CODECS = frozenset({"h264", "hevc", "vp8", "vp9", "mpeg4", "mpeg2video", "mjpeg"})


@no_component
class LibraryReader(PyAVReader):
    """`read` is a library's, unless it cannot read this video; all else is PyAV's."""

    def __init__(self, source: Path | bytes, library: Library) -> None:
        super().__init__(source)
        self._library = library
        self._reader: Any = None
        self._reader_process = 0
        self._turns = 0

    def close(self) -> None:
        """Let go of the file."""
        self._drop()
        super().close()

    def read(self, indices: Sequence[int]) -> Frames:
        """See `VideoReader.read`."""
        info = self.info()
        check_indices(indices, info)
        reader = self._open_library()
        if reader is None:
            return super().read(indices)
        wanted, places = np.unique(np.asarray(indices, np.int64), return_inverse=True)
        if not len(wanted):
            return np.empty((0, info.height, info.width, 3), np.uint8)
        try:
            # Ascending: decord seeks for every step back (sintel trailer, 20 frames: 3.9 s in random order).
            pictures = _READ[self._library](reader, wanted.tolist())
        except Exception as error:  # the libraries' own error types differ by build
            raise DataError(f"{self._name} is damaged: {_first_line(error)}") from error
        return np.ascontiguousarray(np.rot90(pictures, self._turns, (1, 2))[places])

    def _open_library(self) -> Any:
        """The library's reader of this process, or None where it sees another video than PyAV does."""
        if self._reader_process == os.getpid():
            return self._reader
        self._drop()
        try:
            if reason := self._why_pyav():
                raise DataError(reason)
            if isinstance(self._source, bytes):
                head = self._source[:8]
            else:
                with self._source.open("rb") as file:
                    head = file.read(8)
            if not any(head[place : place + len(mark)] == mark for place, mark in _BEGINNINGS):
                raise DataError("it reads only files that start as MP4, QuickTime or Matroska")
            reader = _OPEN[self._library](self._source)
            info = self.info()
            if len(reader) != info.num_frames:
                raise DataError("its number of frames differs from PyAV's")
            ends = [0, info.num_frames - 1]  # a last one of another size would be scaled to that of the first
            found, wanted = _READ[self._library](reader, ends), [PyAVReader.read(self, [index])[0] for index in ends]
            alike = [
                turns
                for turns in {0, info.rotation_deg // 90}
                if all(_are_alike(np.rot90(one, turns), other) for one, other in zip(found, wanted, strict=True))
            ]
            if not alike:
                raise DataError("its first or last frame differs from PyAV's")
            if len(alike) > 1:
                raise DataError("its first and last frame are plain and do not show their rotation")
            self._turns = alike[0]
        except MissingPackage:
            raise
        except Exception as error:
            warn_once(f"some videos are read by PyAV, because {self._library} cannot read them: {_first_line(error)}")
            reader = None
        self._reader, self._reader_process = reader, os.getpid()
        return reader

    def _drop(self) -> None:
        if self._reader is not None and self._reader_process != os.getpid():
            _inherited.append(self._reader)
        self._reader, self._reader_process = None, 0

    def _why_pyav(self) -> str | None:
        """Why the library is not asked for the frames."""
        info = self.info()
        if len(self._open().streams.video) > 1:
            return "several streams of pictures"
        if self._library == "decord" and info.codec not in _DECORD_CODECS:
            return f"codec {info.codec}"
        if info.missing_frames:
            return "a file with missing frames"
        if info.transfer != "sdr":
            return f"HDR ({info.transfer.upper()}), which it does not tone-map"
        if not info.is_square:
            return "pixels that are not square"
        return "interlaced frames" if info.is_interlaced else None


def _are_alike(a: Frame, b: Frame) -> bool:
    return a.shape == b.shape and int(np.abs(a.astype(np.int16) - b).max()) <= 2


def _open_decord(source: Path | bytes) -> Any:
    decord = require("decord", purpose="Decoding with decord")
    return decord.VideoReader(
        io.BytesIO(source) if isinstance(source, bytes) else str(source.absolute()), num_threads=1
    )


def _open_torchcodec(source: Path | bytes) -> Any:
    try:
        decoders = require("torchcodec.decoders", purpose="Decoding with torchcodec")
    except RuntimeError as error:  # it is there, and finds no FFmpeg
        raise MissingPackage(
            "torchcodec is installed, but cannot load FFmpeg's libraries, which it needs: install them (apt "
            f"install ffmpeg), or use decoder=pyav, which brings its own ({_first_line(error)})"
        ) from error
    what = source if isinstance(source, bytes) else str(source.absolute())
    return decoders.VideoDecoder(what, dimension_order="NHWC", num_ffmpeg_threads=1, device="cpu")


_OPEN: dict[Library, Callable[[Path | bytes], Any]] = {"decord": _open_decord, "torchcodec": _open_torchcodec}
_READ: dict[Library, Callable[[Any, list[int]], Frames]] = {
    "decord": lambda reader, indices: reader.get_batch(indices).asnumpy(),
    "torchcodec": lambda reader, indices: reader.get_frames_at(indices).data.numpy(),
}


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
