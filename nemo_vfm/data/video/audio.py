"""Reads the sound of a span of a video: as one channel, as packets that an mp4 can hold unchanged, or as FLAC.

Times are those of the file's own clock, like the time stamps of its frames, so sound and picture stay in sync.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, Literal

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
#: What players take in an mp4. A clip has those packets that lie within its span as a whole.
_COPIED = frozenset({"aac", "ac3", "alac", "eac3", "mp3", "opus"})
_BLOCK = 4096  # samples of a FLAC frame

AudioKind = Literal["copied", "flac", "none", "dropped", "failed"]


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
            return _decode_sound(path, container, start_s, end_s, rate) if container.streams.audio else None
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


def _decode_sound(
    path: Path, container: InputContainer, start_s: float, end_s: float, rate: int
) -> NDArray[np.float32]:
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


@dataclass(frozen=True, slots=True)
class ClipAudio:
    """The sound of a clip.

    Args:
        kind: copied into the mp4 as it was; decoded and kept as FLAC beside it; none where the source has no sound, or
            none there; dropped, since that was asked for; failed, since it is damaged.
        why: why it failed.
        stream: of the copied packets.
        packets: copied ones; their time stamps begin with the clip.
        flac: the bytes of the FLAC, exactly as long as the clip, or shorter where the sound ends before it.
    """

    kind: AudioKind
    why: str = ""
    stream: av.AudioStream | None = None
    packets: Sequence[Any] = ()  # av.Packet, which has no type arguments when it runs
    flac: bytes = b""


@contextmanager
def clip_audio(path: Path, start_s: float, end_s: float, *, keep: bool) -> Iterator[ClipAudio]:
    """The sound of a video between two times of its pictures' clock, valid while the block runs."""
    try:
        container = av.open(f"file:{path.absolute()}", "r", options=OPTIONS)
    except (av.error.FFmpegError, EOFError, ValueError) as error:
        yield ClipAudio("failed", str(error))
        return
    with container:
        if not container.streams.audio:
            found = ClipAudio("none")
        elif not keep:
            found = ClipAudio("dropped")
        else:
            try:
                found = _copy_sound(path, container, start_s, end_s)
            except MemoryError:
                raise
            except Exception as error:  # damaged sound may raise anything, and must not cost the pictures
                found = ClipAudio("failed", str(error) or type(error).__name__)
        yield found


def _copy_sound(path: Path, container: InputContainer, start_s: float, end_s: float) -> ClipAudio:
    stream = sound_of(container)
    if stream.codec_context is None:
        raise DataError("its codec is unknown")
    if stream.codec_context.name in _COPIED:
        packets = _packets(path, container, start_s, end_s)
        if packets and _go_into_mp4(stream, packets):
            return ClipAudio("copied", stream=stream, packets=packets)
    if end_s - start_s > MAX_SECONDS:
        raise DataError(f"it lasts longer than {MAX_SECONDS:g} s")
    stream = sound_of(container)
    rate, layout = stream.codec_context.sample_rate, stream.codec_context.layout.name
    resampler = av.AudioResampler(format="s16", layout=layout, rate=rate)
    samples_SC = np.zeros((round((end_s - start_s) * rate), stream.codec_context.channels), np.int16)
    expected, ends = None, 0
    for frame in decoded_sound(sound_packets(path, container, start_s), end_s):
        if frame.time is None:
            raise DataError("its audio has no timestamps")
        place = round((frame.time - start_s) * rate)
        if expected is not None and abs(place - expected) <= _JITTER_S * rate:
            place = expected
        for piece in resampler.resample(frame):
            values_SC = piece.to_ndarray().reshape(-1, samples_SC.shape[1])
            first, last = max(0, place), min(len(samples_SC), place + len(values_SC))
            if first < last:
                samples_SC[first:last] = values_SC[first - place : last - place]
                ends = max(ends, last)
            place += len(values_SC)
        expected = place
    flac = _encode_flac(samples_SC[:ends], rate, layout) if ends else b""
    return ClipAudio("flac", flac=flac) if flac else ClipAudio("none")


def _go_into_mp4(stream: av.AudioStream, packets: Sequence["av.Packet[av.AudioStream]"]) -> bool:
    """Found out by putting them into one: later it would cost the pictures, too."""
    try:
        with av.open(io.BytesIO(), "w", format="mp4") as out:
            copy = out.add_stream_from_template(stream)
            for packet in packets:
                packet.stream = copy
                out.mux(packet)
    except (av.error.FFmpegError, ValueError):
        return False
    return True


def _packets(path: Path, container: InputContainer, start_s: float, end_s: float) -> list["av.Packet[av.AudioStream]"]:
    """Whole packets of the span; none where one has no time stamp."""
    tick_s, found = sound_of(container).time_base or Fraction(1, av.time_base), []
    start, last = round(start_s / tick_s), -1
    for packet in sound_packets(path, container, start_s):
        if not packet.size or packet.is_corrupt:
            continue
        if packet.pts is None or packet.duration is None:
            return []
        if packet.pts * tick_s >= end_s + 1:
            break
        ends_s = float((packet.pts + packet.duration) * tick_s)
        if packet.pts - start > last and ends_s <= end_s + 1e-6:  # a damaged file may go back in time; an mp4 must not
            last = packet.pts - start
            packet.pts = packet.dts = last
            found.append(packet)
    return found


def _encode_flac(samples_SC: NDArray[np.int16], rate: int, layout: str) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="flac", options={"fflags": "+bitexact"}) as out:
        stream = out.add_stream("flac", rate=rate, layout=layout, format="s16")
        stream.codec_context.flags |= av.codec.context.Flags.bitexact
        for first in range(0, len(samples_SC), _BLOCK):
            block = np.ascontiguousarray(samples_SC[first : first + _BLOCK]).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(block, format="s16", layout=layout)
            frame.sample_rate, frame.pts = rate, first
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()
