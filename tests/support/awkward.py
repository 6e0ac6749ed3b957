"""Writes videos as cameras, broadcasters and interrupted copies leave them."""

import io
from collections.abc import Iterable, Sequence
from fractions import Fraction

import av
import numpy as np

from nemo_vfm.data.video.codecs import open_encoder


def film(
    pictures: Iterable[np.ndarray],
    container: str = "mp4",
    *,
    codec: str = "libx264",
    fps: int = 12,
    stamps_ms: Sequence[int] | None = None,
    aspect: Fraction = Fraction(1),
    pix_fmt: str = "yuv420p",
    **options: str,
) -> bytes:
    """The pictures at a constant rate, or at these milliseconds, with pixels of this shape."""
    file, stream = io.BytesIO(), None
    with av.open(file, "w", format=container) as out:
        for number, picture in enumerate(pictures):
            if stream is None:
                stream = out.add_stream(codec, rate=fps, options=options)
                stream.height, stream.width = picture.shape[:2]
                stream.pix_fmt, stream.codec_context.sample_aspect_ratio = pix_fmt, aspect
                if stamps_ms is not None:
                    stream.codec_context.time_base = Fraction(1, 1000)
                open_encoder(stream)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            if stamps_ms is not None:
                frame.pts, frame.time_base = stamps_ms[number], Fraction(1, 1000)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


def interlaced(pictures: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Of every two pictures one, whose even lines are the later one's: the bottom field comes first."""
    odd = (np.arange(len(pictures[0])) % 2 == 1)[:, None, None]
    return [np.where(odd, early, late) for early, late in zip(pictures[::2], pictures[1::2], strict=True)]


def index_in_front(film: bytes) -> bytes:
    """An mp4 with its index before the pictures, so that a cut hits the pictures."""
    file = io.BytesIO()
    with av.open(io.BytesIO(film)) as source, av.open(file, "w", format="mp4") as out:
        out_stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = out_stream
                out.mux(packet)
    data = file.getvalue()
    at = data.index(b"mdat") - 4
    length = int.from_bytes(data[at : at + 4], "big")
    head, body, index = data[:at], data[at : at + length], bytearray(data[at + length :])
    table = index.index(b"stco")
    for entry in range(int.from_bytes(index[table + 8 : table + 12], "big")):
        place = table + 12 + 4 * entry
        index[place : place + 4] = (int.from_bytes(index[place : place + 4], "big") + len(index)).to_bytes(4, "big")
    return head + bytes(index) + body


def with_hole(film: bytes, keyframe: int) -> bytes:
    """The film with 40 bytes of one of its keyframes, counted from 0, overwritten."""
    with av.open(io.BytesIO(film)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size and packet.is_keyframe]
    at = film.index(packets[keyframe][300:340])
    return film[:at] + bytes(40) + film[at + 40 :]
