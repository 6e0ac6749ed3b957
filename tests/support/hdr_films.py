"""Writes HDR videos, and computes their SDR in float64 from the standards' own formulas."""

import io
from collections.abc import Iterable

import av
import numpy as np

from nemo_vfm.data.video.codecs import open_encoder

WHITE = (0.3127, 0.3290)
PRIMARIES = {  # by their numbers in ITU-T H.273
    1: ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060)),
    9: ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046)),
    12: ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060)),
}
TRC = {"pq": 16, "hlg": 18, "sdr": 1}
PEAK = {"pq": 10_000, "hlg": 1000}


def to_xyz(primaries: int) -> np.ndarray:
    columns = np.array([(x / y, 1, (1 - x - y) / y) for x, y in (*PRIMARIES[primaries], WHITE)]).T
    return columns[:, :3] * np.linalg.solve(columns[:, :3], columns[:, 3])


def light(code: np.ndarray, transfer: str) -> np.ndarray:
    """cd/m2 of coded BT.2020 RGB from 0 to 1: ST 2084's EOTF, or BT.2100's of HLG at 1,000 cd/m2."""
    if transfer == "pq":
        m1, m2, c1, c2, c3 = 0.1593017578125, 78.84375, 0.8359375, 18.8515625, 18.6875
        root = code ** (1 / m2)
        return 10_000 * (np.maximum(root - c1, 0) / (c2 - c3 * root)) ** (1 / m1)
    a, b, c = 0.17883277, 1 - 4 * 0.17883277, 0.5 - 0.17883277 * np.log(4 * 0.17883277)
    scene = np.where(code <= 0.5, code**2 / 3, (np.exp((code - c) / a) + b) / 12)
    luminance = scene @ np.array([0.2627, 0.6780, 0.0593])
    return 1000 * scene * luminance[..., None] ** 0.2


def coded(nits: float, transfer: str) -> float:
    """The code of a grey of so many cd/m2."""
    codes = np.linspace(0, 1, 100_001)
    return float(np.interp(nits, light(np.repeat(codes[:, None], 3, 1), transfer)[:, 0], codes))


def sdr(code: np.ndarray, transfer: str, primaries: int = 9) -> np.ndarray:
    """Coded RGB from 0 to 1, (..., 3), tone-mapped in float64, from 0 to 255 and not rounded."""
    matrix = np.linalg.solve(to_xyz(1), to_xyz(primaries))
    x = np.maximum(light(code, transfer) @ matrix.T, 0) / 203
    knee, peak = 0.7, PEAK[transfer] / 203
    a = -(knee**2) * (peak - 1) / (knee**2 - 2 * knee + peak)
    b = (knee**2 - 2 * knee * peak + peak) / (peak - 1)
    rolled = (b**2 + 2 * b * knee + knee**2) / (b - a) * (x + a) / (x + b)
    return 255 * np.minimum(np.where(x <= knee, x, rolled), 1) ** (1 / 2.4)


def flat(nits: Iterable[float], transfer: str, size_px: int = 32) -> np.ndarray:
    """Greys of so many cd/m2 beside each other, coded from 0 to 1, (H, W, 3)."""
    row = np.repeat([coded(one, transfer) for one in nits], size_px)
    return np.tile(row[None, :, None], (size_px, 1, 3))


def film(
    pictures: Iterable[np.ndarray], transfer: str, container: str = "mp4", *, codec: str = "libx264",
    pix_fmt: str = "yuv420p10le", turned: bool = False, aspect: int = 1, matrix: int | None = None, **options: str,
) -> bytes:  # fmt: skip
    """Coded RGB from 0 to 1, nearly without loss and tagged as what it is, in an mp4 turned by 90 degrees if asked."""
    file, stream = io.BytesIO(), None
    with av.open(file, "w", format=container) as out:
        for picture in pictures:
            deep = av.VideoFrame.from_ndarray(np.round(picture * 65_535).astype(np.uint16), format="rgb48le")
            primaries = 1 if transfer == "sdr" else 9
            frame = deep.reformat(format=pix_fmt, dst_colorspace=primaries, dst_color_range="MPEG")
            frame.colorspace, frame.color_range = matrix or primaries, 1
            frame.color_primaries, frame.color_trc = primaries, TRC[transfer]
            if stream is None:
                stream = out.add_stream(codec, rate=12, options=options or {"crf": "1", "preset": "veryfast"})
                stream.width, stream.height, stream.pix_fmt = frame.width, frame.height, pix_fmt
                context = stream.codec_context
                context.sample_aspect_ratio = aspect
                context.colorspace, context.color_range = frame.colorspace, frame.color_range
                context.color_primaries, context.color_trc = frame.color_primaries, frame.color_trc
                open_encoder(stream)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return _turned(file.getvalue()) if turned else file.getvalue()


def _turned(mp4: bytes) -> bytes:
    """With the matrix of its track header set to a quarter turn."""
    upright, quarter = (
        b"".join(value.to_bytes(4, "big", signed=True) for value in (*rows, 0, 0, 1 << 30))
        for rows in ((1 << 16, 0, 0, 0, 1 << 16, 0), (0, 1 << 16, 0, -(1 << 16), 0, 0))
    )
    at = mp4.index(upright, mp4.index(b"tkhd"))
    return mp4[:at] + quarter + mp4[at + len(upright) :]
