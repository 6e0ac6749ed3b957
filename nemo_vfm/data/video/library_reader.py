"""Reads frames by index through decord or torchcodec, once they are seen to agree with PyAV on the first one."""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from nemo_vfm.core.errors import DataError, MissingPackage
from nemo_vfm.core.log import warn_once
from nemo_vfm.core.optional import require
from nemo_vfm.core.types.media_types import Frame, Frames
from nemo_vfm.data.video.decode import VideoInfo, check_indices, name_of
from nemo_vfm.data.video.pyav_reader import PyAVReader

Library = Literal["decord", "torchcodec"]

# Neither library's FFmpeg can be told which formats it may take, and it takes "#EXTM3U" in a .mp4 for a playlist:
# MPEG-TS with such lines in front, which PyAV reads as MPEG-TS, made decord open other files. What begins like these
# is no playlist.
_BEGINNINGS = ((4, b"ftyp"), (4, b"moov"), (4, b"mdat"), (4, b"wide"), (0, b"\x1a\x45\xdf\xa3"))

# decord aborts the process when a reader crosses a fork, even when it is only freed there: a child keeps it unused.
_inherited: list[Any] = []


class LibraryReader:
    """See `VideoReader`. `read` is the library's, `info` and `frames` are PyAV's."""

    def __init__(self, source: Path | bytes, base: PyAVReader, library: Library) -> None:
        self._source, self._base, self._library = source, base, library
        self._name = name_of(source)
        self._reader: Any = None
        self._turns = 0
        self._process = 0

    def __enter__(self) -> "LibraryReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._drop()
        self._base.close()

    def info(self) -> VideoInfo:
        """See `VideoReader.info`."""
        return self._base.info()

    def frames(self, start: int = 0, stop: int | None = None) -> Iterator[Frame]:
        """See `VideoReader.frames`."""
        return self._base.frames(start, stop)

    def read(self, indices: Sequence[int]) -> Frames:
        """See `VideoReader.read`."""
        info = self.info()
        check_indices(indices, info)
        reader = self._opened()
        if reader is None:
            return self._base.read(indices)
        wanted, places = np.unique(np.asarray(indices, np.int64), return_inverse=True)
        if not len(wanted):
            return np.empty((0, info.height, info.width, 3), np.uint8)
        try:
            # Ascending: decord seeks for every step back (sintel trailer, 20 frames: 3.9 s in random order).
            pictures = _READ[self._library](reader, wanted.tolist())
        except Exception as error:  # the libraries' own error types differ by build
            raise DataError(f"{self._name} is damaged: {_first_line(error)}") from error
        return np.ascontiguousarray(np.rot90(pictures, self._turns, (1, 2))[places])

    def _opened(self) -> Any:
        """The library's reader of this process, or None where it sees another video than PyAV does."""
        if self._process == os.getpid():
            return self._reader
        self._drop()
        try:
            if not _is_mp4_or_matroska(self._source):
                raise DataError("it reads only files that start as MP4, QuickTime or Matroska")
            reader = _OPEN[self._library](self._source)
            self._turns = self._missing_turns(reader)
        except MissingPackage:
            raise
        except Exception as error:
            warn_once(f"some videos are read by PyAV, because {self._library} cannot read them: {_first_line(error)}")
            reader = None
        self._reader, self._process = reader, os.getpid()
        return reader

    def _missing_turns(self, reader: Any) -> int:
        """Quarter turns still to apply: decord turns some containers' pictures by itself and others not."""
        info = self.info()
        if len(reader) != info.num_frames:
            raise DataError("its number of frames differs from PyAV's")
        ends = [0, info.num_frames - 1]  # a last one of another size would be scaled to that of the first
        found, wanted = _READ[self._library](reader, ends), [self._base.read([index])[0] for index in ends]
        alike = [
            turns
            for turns in {0, info.rotation_deg // 90}
            if all(_are_alike(np.rot90(one, turns), other) for one, other in zip(found, wanted, strict=True))
        ]
        if not alike:
            raise DataError("its first or last frame differs from PyAV's")
        if len(alike) > 1:
            raise DataError("its first and last frame are plain and do not show their rotation")
        return alike[0]

    def _drop(self) -> None:
        if self._reader is not None and self._process != os.getpid():
            _inherited.append(self._reader)
        self._reader, self._process = None, 0


def _are_alike(a: Frame, b: Frame) -> bool:
    return a.shape == b.shape and int(np.abs(a.astype(np.int16) - b).max()) <= 2


def _open_decord(source: Path | bytes) -> Any:
    decord = require("decord", purpose="Decoding with decord")
    return decord.VideoReader(io.BytesIO(source) if isinstance(source, bytes) else _path(source), num_threads=1)


def _open_torchcodec(source: Path | bytes) -> Any:
    try:
        decoders = require("torchcodec.decoders", purpose="Decoding with torchcodec")
    except RuntimeError as error:  # it is there, and finds no FFmpeg
        raise MissingPackage(
            "torchcodec is installed, but cannot load FFmpeg's libraries, which it needs: install them (apt "
            f"install ffmpeg), or use decoder=pyav, which brings its own ({_first_line(error)})"
        ) from error
    what = source if isinstance(source, bytes) else _path(source)
    return decoders.VideoDecoder(what, dimension_order="NHWC", num_ffmpeg_threads=1, device="cpu")


def _path(source: Path) -> str:
    return str(source.absolute())


_OPEN: dict[Library, Callable[[Path | bytes], Any]] = {"decord": _open_decord, "torchcodec": _open_torchcodec}
_READ: dict[Library, Callable[[Any, list[int]], Frames]] = {
    "decord": lambda reader, indices: reader.get_batch(indices).asnumpy(),
    "torchcodec": lambda reader, indices: reader.get_frames_at(indices).data.numpy(),
}


def _is_mp4_or_matroska(source: Path | bytes) -> bool:
    if isinstance(source, bytes):
        head = source[:8]
    else:
        with source.open("rb") as file:
            head = file.read(8)
    return any(head[place : place + len(mark)] == mark for place, mark in _BEGINNINGS)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
