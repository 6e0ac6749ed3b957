"""Extracts the sound of a span of a video: as packets that an mp4 can hold unchanged, or else as FLAC."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import av
import av.error
import numpy as np
from av.container import InputContainer
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.video.audio import MAX_SECONDS, decoded_sound, sound_of, sound_packets
from nemo_vfm.data.video.pyav_reader import OPTIONS

#: What players take in an mp4. A clip has those packets that lie within its span as a whole.
_COPIED = frozenset({"aac", "ac3", "alac", "eac3", "mp3", "opus"})
_JITTER_S = 0.02  # time stamps are rounded; a hole is longer
_BLOCK = 4096  # samples of a FLAC frame

AudioKind = Literal["copied", "flac", "none", "dropped", "failed"]


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
                found = _kept(path, container, start_s, end_s)
            except MemoryError:
                raise
            except Exception as error:  # damaged sound may raise anything, and must not cost the pictures
                found = ClipAudio("failed", str(error) or type(error).__name__)
        yield found


def _kept(path: Path, container: InputContainer, start_s: float, end_s: float) -> ClipAudio:
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
    flac = _encoded(samples_SC[:ends], rate, layout) if ends else b""
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


def _encoded(samples_SC: NDArray[np.int16], rate: int, layout: str) -> bytes:
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
