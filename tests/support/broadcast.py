"""Makes videos whose frames bear their numbers, and MPEG-TS as recorders and segmenters leave it."""

import io
from collections.abc import Iterable

import av
import numpy as np

_BITS, _BAR_PX = 10, 16
_PACKET = 188


def barcoded(numbers: Iterable[int], height: int = 96, scale: int = 1) -> list[np.ndarray]:
    """Pictures of ten bars each, white for the ones of its number; a grey strip below moves with the number."""
    pictures = []
    for number in numbers:
        bars = np.repeat([235 if number >> bit & 1 else 16 for bit in range(_BITS)], _BAR_PX * scale)
        picture = np.repeat(np.tile(bars.astype(np.uint8), (height * scale, 1))[..., None], 3, axis=2)
        picture[-8 * scale :] = (40 + 5 * number) % 200
        pictures.append(picture)
    return pictures


def number_of(picture_HWC: np.ndarray) -> int:
    """The number that a picture bears, at whatever size."""
    height, width = picture_HWC.shape[:2]
    places = ((np.arange(_BITS) + 0.5) * width / _BITS).astype(int)
    return int(sum(1 << bit for bit, place in enumerate(places) if picture_HWC[height // 3, place].mean() > 125))


def packets(stream: bytes) -> list[bytes]:
    return [stream[at : at + _PACKET] for at in range(0, len(stream), _PACKET)]


def pid_of(packet: bytes) -> int:
    """Which elementary stream a transport packet belongs to."""
    return (packet[1] & 0x1F) << 8 | packet[2]


def cut_before(stream: bytes, frame: int) -> bytes:
    """An MPEG-TS without its first so many pictures, in the order of the file; its tables of contents come first."""
    with av.open(io.BytesIO(stream)) as container:
        places = [packet.pos for packet in container.demux(video=0) if packet.size]
    tables = [packet for packet in packets(stream)[:20] if pid_of(packet) in (0, 0x1000, 0x11)][:3]
    return b"".join(tables) + stream[places[frame] :]


def with_counters_from(stream: bytes, first: int) -> bytes:
    """The same MPEG-TS whose continuity counters all begin with another number, as of a segmenter that starts anew."""
    done = []
    for packet in packets(stream):
        counter = ((packet[3] & 15) + first) & 15
        done.append(packet[:3] + bytes([packet[3] & 0xF0 | counter]) + packet[4:])
    return b"".join(done)


def numbers_of(pictures: Iterable[np.ndarray]) -> list[int]:
    return [number_of(picture) for picture in pictures]


def without_packet(stream: bytes, frame: int) -> bytes:
    """An MPEG-TS that lost a packet in the middle of a picture, counted in the order of the file."""
    with av.open(io.BytesIO(stream)) as container:
        places = [packet.pos for packet in container.demux(video=0) if packet.size]
    at = [place for place in range(places[frame], places[frame + 1], _PACKET) if pid_of(stream[place:]) == 0x100]
    lost = at[len(at) // 2]
    return stream[:lost] + stream[lost + _PACKET :]


def with_stamps_moved(film: bytes, ticks: int) -> bytes:
    """An MPEG-TS that much later on its clock, of 90 kHz, which goes round after 2**33 ticks."""
    file = io.BytesIO()
    with av.open(io.BytesIO(film)) as source, av.open(file, "w", format="mpegts") as out:
        copies = {stream.index: out.add_stream_from_template(stream) for stream in source.streams}
        for packet in source.demux():
            if packet.pts is not None and packet.dts is not None:
                packet.pts, packet.dts, packet.stream = (
                    packet.pts + ticks,
                    packet.dts + ticks,
                    copies[packet.stream.index],
                )
                out.mux(packet)
    return file.getvalue()
