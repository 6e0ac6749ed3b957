# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a JPEG, PNG or WebP as an upright picture, with the bytes that shards keep, or says why it is unusable.

Decoders accept a truncated file and fill the rest with grey. They show the first picture of an animation as if it were
the only one. So the container is checked first. Shape letters: H height, W width, C colours (RGB).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.video.decode import check_size

ImageFormat = Literal["jpeg", "png", "webp"]

MAX_BYTES = 1 << 30  # the largest picture that is decoded, of 16 bits and four channels, has half as many uncompressed

_CUT = "is cut short"
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})  # markers of a JPEG that stand alone
_NO_FRAME = frozenset({0xC4, 0xC8, 0xCC})  # Huffman tables, reserved, arithmetic coding


@dataclass(frozen=True, slots=True)
class StillImage:
    """One image, decoded.

    Args:
        data: the file.
        format: by its bytes, not by its name.
        picture_HWC: RGB, 8 bits, turned upright; transparency is ignored.
        is_upright: whether it is stored as it is shown.
    """

    data: bytes
    format: ImageFormat
    picture_HWC: NDArray[np.uint8]
    is_upright: bool

    @property
    def width(self) -> int:
        """Pixels, upright."""
        return int(self.picture_HWC.shape[1])

    @property
    def height(self) -> int:
        """Pixels, upright."""
        return int(self.picture_HWC.shape[0])

    def as_stored(self) -> tuple[str, bytes]:
        """Extension and bytes for a shard: an upright JPEG or PNG as it is, metadata included, others as PNG."""
        if self.is_upright and self.format != "webp":
            return ("jpg" if self.format == "jpeg" else "png"), self.data
        return "png", png(self.picture_HWC)


def png(picture_HWC: NDArray[np.uint8]) -> bytes:
    """A picture (RGB) without loss and without metadata."""
    done, data = cv2.imencode(".png", np.ascontiguousarray(picture_HWC[..., ::-1]))
    assert done
    return data.tobytes()


def is_deep(data: bytes) -> bool:
    """Whether it is a PNG of 16 bits a channel, of which decoding keeps the upper 8."""
    return data[:8] == b"\x89PNG\r\n\x1a\n" and data[24:25] == b"\x10"


def said_of_deep(count: int) -> str:
    """A sentence about so many of them."""
    what = "One image has" if count == 1 else f"{count:,} images have"
    return f"{what} 16 bits a channel, of which the upper 8 are used; scale dim ones to the full range before"


def open_image(source: Path | bytes) -> StillImage:
    """Read and decode an image.

    Raises:
        DataError: it is damaged, cut short, animated, too large, or of another format; the sentence has no name.
        OSError: the file cannot be read.
    """
    data = source if isinstance(source, bytes) else _read(source)
    kind = _format(data)
    width, height = {"jpeg": _walk_jpeg, "png": _walk_png, "webp": _walk_webp}[kind](data)
    check_size(width, height, "the image")
    picture_HWC, is_upright = _decoded(data)
    check_size(picture_HWC.shape[1], picture_HWC.shape[0], "the image")  # it may be larger than it says
    return StillImage(data, kind, picture_HWC, is_upright)


def _read(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise DataError(f"has {size:,} bytes; an image has at most {MAX_BYTES:,}")
    return path.read_bytes()


def _format(data: bytes) -> ImageFormat:
    if data[:2] == b"\xff\xd8":
        return "jpeg"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    raise DataError("is neither a JPEG nor a PNG nor a WebP, whatever its name says")


def _walk_png(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG that has its end."""
    position, size = 8, (0, 0)
    while position + 12 <= len(data):
        length, kind = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8]
        if kind == b"IHDR":
            size = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
        if kind == b"acTL":
            raise DataError("is an animated PNG; only still images can be used")
        position += 12 + length
        if kind == b"IEND" and position <= len(data):
            return size
    raise DataError(_CUT)


def _walk_webp(data: bytes) -> tuple[int, int]:
    """Width and height of a WebP that is as long as it says."""
    if int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise DataError(_CUT)
    kind, head = data[12:16], data[20:30]
    if kind == b"VP8X":
        if head[0] & 0x02:
            raise DataError("is an animated WebP; only still images can be used")
        return 1 + int.from_bytes(head[4:7], "little"), 1 + int.from_bytes(head[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        return int.from_bytes(head[6:8], "little") & 0x3FFF, int.from_bytes(head[8:10], "little") & 0x3FFF
    raise DataError("is a damaged WebP: it begins with no picture")


def _walk_jpeg(data: bytes) -> tuple[int, int]:
    """Width and height of a JPEG that has its end; a maker may put more pictures, and anything else, behind that."""
    size = (0, 0)
    for marker, position in _markers(data):
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = data[position + 5 : position + 7], data[position + 7 : position + 9]
            size = int.from_bytes(width, "big"), int.from_bytes(height, "big")
        if marker == 0xD9:
            return size
    raise DataError(_CUT)


def _markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Each marker of a JPEG, and where it stands: segments are passed over, and coded data searched."""
    position = 2
    while 0 <= (position := data.find(b"\xff", position)) < len(data) - 1:
        marker = data[position + 1]
        if marker in (0x00, 0xFF):  # a stuffed byte of coded data; filling
            position += 1 + (marker == 0)
            continue
        yield marker, position
        position += 2 if marker in _NO_LENGTH else 2 + int.from_bytes(data[position + 2 : position + 4], "big")


def _decoded(data: bytes) -> tuple[NDArray[np.uint8], bool]:
    """The upright picture, and whether it is stored so: by what turning does, since Exif hides in many places."""
    shown = _pixels(data, cv2.IMREAD_COLOR)
    if b"Exif" not in data and b"eXIf" not in data:
        return shown, True
    stored = _pixels(data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    return shown, np.array_equal(shown, stored)


def _pixels(data: bytes, flags: int) -> NDArray[np.uint8]:
    try:
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise DataError(f"is a damaged image: {' '.join(str(error).split())}") from error
    if picture is None:
        raise DataError("is a damaged image: its picture cannot be decoded")
    return np.ascontiguousarray(picture[..., ::-1], dtype=np.uint8)
