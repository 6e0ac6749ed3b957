# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the sound of a span of a video as one channel at a given rate.

Times are those of the file's own clock, like the time stamps of its frames, so sound and picture stay in sync.
"""

from collections.abc import Iterator
from pathlib import Path

import av
import av.error
import numpy as np
from av.audio.frame import AudioFrame
from av.container import InputContainer
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.data.video.pyav_reader import LATE_STREAM, OPTIONS

MAX_SECONDS = 3600.0
_JITTER_S = 0.02  # time stamps are rounded; a hole is longer


def read_audio(path: Path, start_s: float, end_s: float, *, rate: int = 16_000) -> NDArray[np.float32] | None:
    """Samples from -1 to 1, `round((end_s - start_s) * rate)` of them; None where the file has no sound at all.

    Raises:
        UserError: there is no such file, or the span is empty or longer than MAX_SECONDS.
        DataError: it is damaged.
    """
    if not 0 < end_s - start_s <= MAX_SECONDS:
        raise UserError(
            f"a span from {start_s:g} s to {end_s:g} s cannot be read from the audio; a span is at "
            f"most {MAX_SECONDS:g} s"
        )
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        # The same fences as for pictures: nothing in a file opens another one, or an address.
        with av.open(f"file:{path.absolute()}", "r", options=OPTIONS) as container:
            return _heard(container, start_s, end_s, rate) if container.streams.audio else None
    except (av.error.FFmpegError, EOFError) as error:
        raise DataError(f"the audio of {path.name} cannot be decoded: {error}") from error
    except IndexError as error:
        raise DataError(f"{path.name} {LATE_STREAM}") from error


def _heard(container: InputContainer, start_s: float, end_s: float, rate: int) -> NDArray[np.float32]:
    """Every piece is laid where its time stamp says; what was cut out of the sound stays silent."""
    samples = np.zeros(round((end_s - start_s) * rate), np.float32)
    expected: int | None = None
    for piece in _pieces(container, start_s, end_s, rate):
        if piece.pts is None or piece.time_base is None:
            raise DataError("its audio has no timestamps")
        place = round((float(piece.pts * piece.time_base) - start_s) * rate)
        if expected is not None and abs(place - expected) <= _JITTER_S * rate:
            place = expected
        values = piece.to_ndarray().reshape(-1)
        first, last = max(0, place), min(len(samples), place + len(values))
        if first < last:
            samples[first:last] = values[first - place : last - place]
        expected = place + len(values)
    return samples


def _pieces(container: InputContainer, start_s: float, end_s: float, rate: int) -> Iterator[AudioFrame]:
    """Decoded frames from a little before the span to its end, as one channel at the rate."""
    stream = container.streams.audio[0]
    resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
    container.seek(max(0, int((start_s - 0.5) * av.time_base)), backward=True)
    for frame in container.decode(stream):
        if frame.time is not None and frame.time >= end_s + 0.1:
            break
        yield from resampler.resample(frame)
    yield from resampler.resample(None)
