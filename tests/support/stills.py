"""Makes small image files from seeds: whole ones of each format, turned, animated, cut short and declared too large."""

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np

from tests.support.films import texture

_QUALITY = {".jpg": [cv2.IMWRITE_JPEG_QUALITY, 92], ".webp": [cv2.IMWRITE_WEBP_QUALITY, 101], ".png": []}


def coded(picture_HWC: np.ndarray, suffix: str) -> bytes:
    """A picture (RGB) as a file of this format; WebP without loss."""
    done, data = cv2.imencode(suffix, picture_HWC[..., ::-1], _QUALITY[suffix])
    assert done
    return data.tobytes()


def scene(seed: int) -> np.ndarray:
    """A picture with edges: a texture behind squares of 16 pixels in colours of their own."""
    squares = np.random.default_rng(seed).integers(0, 160, (6, 8, 3), np.uint8)
    return texture(seed) // 3 + squares.repeat(16, axis=0).repeat(16, axis=1)


def write_still(path: Path, seed: int) -> Path:
    """A scene in the format that the name says."""
    path.write_bytes(coded(scene(seed), path.suffix))
    return path


def turned_jpeg(seed: int, orientation: int) -> bytes:
    """A JPEG whose Exif tag says how it is to be turned."""
    data = coded(scene(seed), ".jpg")
    tag = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    exif = b"Exif\0\0" + b"II*\0" + struct.pack("<IH", 8, 1) + tag + struct.pack("<I", 0)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk with its length and sum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def bomb_png(side_px: int = 60_000) -> bytes:
    """A PNG of some bytes that says it has so many pixels a side."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", side_px, side_px, 8, 2, 0, 0, 0))
    rows = png_chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + header + rows + png_chunk(b"IEND", b"")


def animated_png(seed: int) -> bytes:
    """A PNG that says, before its picture, that two more follow."""
    data = coded(scene(seed), ".png")
    return data[:33] + png_chunk(b"acTL", struct.pack(">II", 2, 0)) + data[33:]


def animated_webp(seed: int) -> bytes:
    """A WebP whose extended header has the animation bit."""
    picture = scene(seed)
    height, width = picture.shape[:2]
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    head = b"VP8X" + struct.pack("<I", 10) + bytes([0x02, 0, 0, 0]) + size
    body = b"WEBP" + head + b"ANIM" + struct.pack("<IIH", 6, 0, 0) + coded(picture, ".webp")[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body
