"""Reads the sound of a span of a video as one channel at a given rate.

Times are those of the file's own clock, like the time stamps of its frames, so sound and picture stay in sync.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import av
import av.error
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.data.video.joined_recordings import LONG_STEP, Recordings
from nemo_vfm.data.video.pyav_reader import LATE_STREAM, OPTIONS, SOUGHT_BY_BYTE, PyAVReader, film_of

MAX_SECONDS = 3600.0
_FOR_FEW = Disposition.comment | Disposition.hearing_impaired | Disposition.visual_impaired | Disposition.descriptions
_INTERLEAVED_S = 2.0  # sound lies in a broadcast behind the pictures of its time, by a second at most
_JITTER_S = 0.02  # time stamps are rounded; a hole is longer


def read_audio(path: Path, start_s: float, end_s: float, *, rate: int = 16_000) -> NDArray[np.float32] | None:
    """Samples from -1 to 1, `round((end_s - start_s) * rate)` of them; None where the file has no sound at all.

    Raises:
        UserError: there is no such file, or the span is empty or longer than MAX_SECONDS.
        DataError: it is damaged.
    """
    if not 0 < end_s - start_s <= MAX_SECONDS:
        raise UserError(
            f"a span from {start_s:g} s to {end_s:g} s cannot be read from the audio; a span lasts "
            f"at most {MAX_SECONDS:g} s"
        )
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        # The same fences as for pictures: nothing in a file opens another one, or an address.
        with av.open(f"file:{path.absolute()}", "r", options=OPTIONS) as container:
            return _heard(path, container, start_s, end_s, rate) if container.streams.audio else None
    except (av.error.FFmpegError, EOFError) as error:
        raise DataError(f"the audio of {path.name} cannot be decoded: {error}") from error
    except IndexError as error:
        raise DataError(f"{path.name} {LATE_STREAM}") from error


def sound_of(container: InputContainer) -> AudioStream:
    """The audio stream that is taken: a default one before others, none for few listeners, then most channels.

    A broadcast of several programmes lists each one's pictures before its sound.
    """
    sounds = list(container.streams.audio)
    if container.format.name in SOUGHT_BY_BYTE and container.streams.video:
        film = film_of(container).index
        after = min((video.index for video in container.streams.video if video.index > film), default=1 << 30)
        sounds = [sound for sound in sounds if film < sound.index < after] or sounds

    def rank(stream: AudioStream) -> tuple[bool, bool, bool, int]:
        context, flags = getattr(stream, "codec_context", None), stream.disposition
        channels = 0 if context is None or not context.sample_rate else context.channels
        return not channels, not flags & Disposition.default, bool(flags & _FOR_FEW), -channels

    return min(sounds, key=rank)


def sound_packets(path: Path, container: InputContainer, start_s: float) -> "Iterator[Packet[AudioStream]]":
    """Packets of the sound from a little before a time on, on the clock of the pictures.

    Where a file holds several recordings, that clock goes on from one to the next (see `joined_recordings`). A packet
    belongs to the one in which it lies; the first of one may lie before its first picture, with a clock that goes back.
    """
    stream, recordings = sound_of(container), Recordings()
    if container.format.name in SOUGHT_BY_BYTE and container.streams.video:
        with PyAVReader(path) as reader:
            recordings, place = reader.recordings(), reader.place_before(start_s - _INTERLEAVED_S)
    if not recordings.places:
        earliest = min(0, container.start_time or 0)  # a clock that goes round begins below 0
        container.seek(max(earliest, int((start_s - 0.5) * av.time_base)), backward=True)
        yield from container.demux(stream)
        return
    container.seek(place, unsupported_byte_offset=True)
    number, before = recordings.number(place), 0
    for packet in container.demux(stream):
        if packet.size and packet.pts is not None:
            went_back = number + 1 < len(recordings.shifts) and packet.pts < before - LONG_STEP
            number, before = max(recordings.number(packet.pos or 0), number + went_back), packet.pts
            shift = recordings.shifts[number]
            if shift is None:
                continue
            packet.pts = packet.dts = packet.pts + shift
        yield packet


def _heard(path: Path, container: InputContainer, start_s: float, end_s: float, rate: int) -> NDArray[np.float32]:
    """Every piece is laid where its time stamp says; what was cut out of the sound stays silent."""
    samples = np.zeros(round((end_s - start_s) * rate), np.float32)
    expected: int | None = None
    resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
    frames = chain(decoded_sound(sound_packets(path, container, start_s), end_s), (None,))
    for piece in (piece for frame in frames for piece in resampler.resample(frame)):
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


def decoded_sound(packets: "Iterable[Packet[AudioStream]]", end_s: float) -> Iterator[AudioFrame]:
    """What packets hold, up to a time."""
    for frame in (frame for packet in packets for frame in packet.decode()):
        if frame.time is not None and frame.time >= end_s + 0.1:
            return
        yield frame
