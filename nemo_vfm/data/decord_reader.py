# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A video in, scattered frames out, through decord: the fast reader on x86-64. Everything else is left to PyAV."""

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
from nemo_vfm.data.decode import Picture, VideoInfo, check_indices, name_of
from nemo_vfm.data.pyav_reader import PyAVReader

# decord aborts the process when a reader crosses a fork, even when it is only freed there: a child keeps it unused.
_inherited: list[Any] = []


class DecordReader:
    """See `VideoReader`. `read` is decord's; `info` and `frames` are PyAV's, which is as fast in order.

    Args:
        source: a path, or the file's bytes.
        base: the same video, opened by PyAV.
    """

    def __init__(self, source: Path | bytes, base: PyAVReader) -> None:
        self._source, self._base = source, base
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

    def frames(self, start: int = 0, stop: int | None = None) -> Iterator[Picture]:
        """See `VideoReader.frames`."""
        return self._base.frames(start, stop)

    def read(self, indices: Sequence[int]) -> Picture:
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
            pictures = reader.get_batch(wanted.tolist()).asnumpy()
        except Exception as error:  # decord's own error types differ by build
            raise DataError(f"{self._name} is damaged: {_first_line(error)}") from error
        return np.ascontiguousarray(np.rot90(pictures, self._turns, (1, 2))[places])

    def _opened(self) -> Any:
        """decord's reader of this process, or None where it sees another video than PyAV does."""
        if self._process == os.getpid():
            return self._reader
        self._drop()
        decord = require("decord", install="decord", purpose="Reading scattered frames with decord")
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
        first, wanted = reader[0].asnumpy(), self._base.read([0])[0]
        for turns in (0, info.rotation_deg // 90):
            turned = np.rot90(first, turns)
            if turned.shape == wanted.shape and np.abs(turned.astype(np.int16) - wanted).max() <= 2:
                return turns
        raise DataError("its first frame differs from PyAV's")

    def _drop(self) -> None:
        if self._reader is not None and self._process != os.getpid():
            _inherited.append(self._reader)
        self._reader, self._process = None, 0


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
