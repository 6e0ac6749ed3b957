# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads scattered frames of a video through decord, fast on x86-64. Everything else is left to PyAV."""

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.log import warn_once
from nemo_vfm.core.optional import require
from nemo_vfm.core.types.media_types import Frame, Frames
from nemo_vfm.data.video.decode import VideoInfo, check_indices, name_of
from nemo_vfm.data.video.pyav_reader import PyAVReader

# decord's FFmpeg cannot be told which formats it may take, and takes "#EXTM3U" in a .mp4 for a playlist: MPEG-TS with
# such lines in front, which PyAV reads as MPEG-TS, made it open other files. What begins like these is no playlist.
_BEGINNINGS = ((4, b"ftyp"), (4, b"moov"), (4, b"mdat"), (4, b"wide"), (0, b"\x1a\x45\xdf\xa3"))

# decord aborts the process when a reader crosses a fork, even when it is only freed there: a child keeps it unused.
_inherited: list[Any] = []


# Every second of 33 frames of 320x192 took PyAV 11 ms of CPU and decord 14, and as much again to be opened and compared
# (2026-11). Of frames 8 apart each decodes nearly all; further apart, only decord seeks well.
_CLOSE = 8


class DecordReader:
    """See `VideoReader`. `read` is decord's; `info` and `frames` are PyAV's, which is as fast in order.

    Args:
        source: a path, or the file's bytes.
        base: the same video, opened by PyAV.
        always: also for frames so close together that PyAV, which decodes through, is quicker.
    """

    def __init__(self, source: Path | bytes, base: PyAVReader, *, always: bool = False) -> None:
        self._source, self._base, self._always = source, base, always
        self._name = name_of(source)
        self._reader: Any = None
        self._turns = 0
        self._process = 0

    def __enter__(self) -> "DecordReader":
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
        if not self._always and len(indices) and max(indices) - min(indices) < _CLOSE * len(set(indices)):
            return self._base.read(indices)
        reader = self._opened()
        if reader is None:
            return self._base.read(indices)
        wanted, places = np.unique(np.asarray(indices, np.int64), return_inverse=True)
        if not len(wanted):
            return np.empty((0, info.height, info.width, 3), np.uint8)
        try:
            # Ascending: decord seeks for every step back (sintel trailer, 20 frames: 3.9 s in random order).
            pictures = reader.get_batch(wanted.tolist()).asnumpy()
        except Exception as error:  # decord's own error types differ by build
            raise DataError(f"{self._name} is damaged: {_first_line(error)}") from error
        return np.ascontiguousarray(np.rot90(pictures, self._turns, (1, 2))[places])

    def _opened(self) -> Any:
        """decord's reader of this process, or None where it sees another video than PyAV does."""
        if self._process == os.getpid():
            return self._reader
        self._drop()
        if not _is_mp4_or_matroska(self._source):
            self._process = os.getpid()
            warn_once(f"PyAV reads {self._name}: decord reads only files that start as MP4, QuickTime or Matroska")
            return None
        decord = require("decord", purpose="Reading scattered frames with decord")
        source = io.BytesIO(self._source) if isinstance(self._source, bytes) else str(self._source.absolute())
        try:
            reader = decord.VideoReader(source, num_threads=1)
            self._turns = self._missing_turns(reader)
        except Exception as error:
            warn_once(f"PyAV reads {self._name}, which decord cannot: {_first_line(error)}")
            reader = None
        self._reader, self._process = reader, os.getpid()
        return reader

    def _missing_turns(self, reader: Any) -> int:
        """Quarter turns still to apply: decord turns some containers' pictures by itself and others not."""
        info = self.info()
        if len(reader) != info.num_frames:
            raise DataError(f"it counts {len(reader)} frames, PyAV {info.num_frames}")
        ends = [0, info.num_frames - 1]  # a last one of another size would be scaled to that of the first
        found, wanted = reader.get_batch(ends).asnumpy(), [self._base.read([index])[0] for index in ends]
        for turns in (0, info.rotation_deg // 90):
            turned = np.rot90(found, turns, (1, 2)).astype(np.int16)
            if all(a.shape == b.shape and np.abs(a - b).max() <= 2 for a, b in zip(turned, wanted, strict=True)):
                return turns
        raise DataError("its first or last frame differs from PyAV's")

    def _drop(self) -> None:
        if self._reader is not None and self._process != os.getpid():
            _inherited.append(self._reader)
        self._reader, self._process = None, 0


def _is_mp4_or_matroska(source: Path | bytes) -> bool:
    if isinstance(source, bytes):
        head = source[:8]
    else:
        with source.open("rb") as file:
            head = file.read(8)
    return any(head[place : place + len(mark)] == mark for place, mark in _BEGINNINGS)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
