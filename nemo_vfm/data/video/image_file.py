"""Reads a JPEG, PNG or WebP as an upright picture, with the bytes that shards keep, or says why it is unusable.

Decoders accept a truncated file and fill the rest with grey. They show the first picture of an animation as if it were
the only one. So the container is checked first. Shape letters: H height, W width, C colours (RGB).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.media_types import Frame, Transfer
from nemo_vfm.data.video.tone_map import tone_mapped, transfer_of
from nemo_vfm.data.video.video_info import check_size

ImageFormat = Literal["jpeg", "png", "webp"]

MAX_BYTES = 1 << 30  # the largest picture that is decoded, of 16 bits and four channels, has half as many uncompressed

_PNG = b"\x89PNG\r\n\x1a\n"
_CUT = "is truncated"
_NO_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})  # markers of a JPEG that stand alone
_NO_FRAME = frozenset({0xC4, 0xC8, 0xCC})  # Huffman tables, reserved, arithmetic coding


@dataclass(frozen=True, slots=True)
class StillImage:
    """One image, decoded."""

    data: bytes  #: the file
    format: ImageFormat  #: by its bytes, not by its name
    picture_HWC: NDArray[np.uint8]  #: RGB, 8 bits, turned upright, HDR tone-mapped; transparency is ignored
    is_upright: bool  #: whether it is stored as it is shown

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
    """Whether it is a PNG of 16 bits a channel and SDR, of which decoding keeps the upper 8."""
    return data[:8] == _PNG and data[24:25] == b"\x10" and _png_transfer(data)[0] == "sdr"


def said_of_deep(count: int) -> str:
    """A sentence about so many of them."""
    what = "One image has" if count == 1 else f"{count:,} images have"
    return f"{what} 16 bits a channel, of which the upper 8 are used; scale dim images to the full range first"


def open_image(source: Path | bytes) -> StillImage:
    """Read and decode an image.

    Raises:
        DataError: it is damaged, cut short, animated, too large, or of another format; the sentence has no name.
        OSError: the file cannot be read.
    """
    if isinstance(source, Path):
        if (size := source.stat().st_size) > MAX_BYTES:
            raise DataError(f"has {size:,} bytes; an image has at most {MAX_BYTES:,}")
        source = source.read_bytes()
    data = source
    kind: ImageFormat
    if data[:2] == b"\xff\xd8":
        kind, (width, height) = "jpeg", _walk_jpeg(data)
    elif data[:8] == _PNG:
        kind, (width, height) = "png", _walk_png(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind, (width, height) = "webp", _walk_webp(data)
    else:
        raise DataError("is not a JPEG, PNG or WebP, despite its name")
    check_size(width, height, "the image")
    picture_HWC, is_upright = _decode(data)
    check_size(picture_HWC.shape[1], picture_HWC.shape[0], "the image")  # it may be larger than it says
    return StillImage(data, kind, picture_HWC, is_upright)


def _walk_png(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG that has its end."""
    size = 0, 0
    for kind, _, end in _chunks(data):
        if kind == b"IHDR":
            size = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
        if kind == b"acTL":
            raise DataError("is an animated PNG; only still images can be used")
        if kind == b"IEND" and end + 4 <= len(data):
            return size
    raise DataError(_CUT)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Each chunk of a PNG: its kind, where its content begins and where it ends."""
    position = 8
    while position + 12 <= len(data):
        start, length = position + 8, int.from_bytes(data[position : position + 4], "big")
        yield data[position + 4 : start], start, start + length
        position = start + length + 4


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
    raise DataError("is a damaged WebP: it does not begin with a picture")


def _walk_jpeg(data: bytes) -> tuple[int, int]:
    """Width and height of a JPEG that has its end; a maker may put more pictures, and anything else, behind that."""
    size, position = (0, 0), 2
    # Segments are passed over, and coded data searched.
    while 0 <= (position := data.find(b"\xff", position)) < len(data) - 1:
        marker = data[position + 1]
        if marker in (0x00, 0xFF):  # a stuffed byte of coded data; filling
            position += 1 + (marker == 0)
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = data[position + 5 : position + 7], data[position + 7 : position + 9]
            size = int.from_bytes(width, "big"), int.from_bytes(height, "big")
        if marker == 0xD9:
            return size
        position += 2 if marker in _NO_LENGTH else 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    raise DataError(_CUT)


def _decode(data: bytes) -> tuple[NDArray[np.uint8], bool]:
    """The picture as it is shown, and whether it is stored so; by what turning does, since Exif hides anywhere."""
    shown = _pixels(data, cv2.IMREAD_COLOR)
    if _png_transfer(data)[0] != "sdr":
        return shown, False
    if b"Exif" not in data and b"eXIf" not in data:
        return shown, True
    stored = _pixels(data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    return shown, np.array_equal(shown, stored)


def _pixels(data: bytes, flags: int) -> NDArray[np.uint8]:
    try:
        picture = rgb_pixels(data, flags)
    except cv2.error as error:
        raise DataError(f"is a damaged image: {' '.join(str(error).split())}") from error
    if picture is None:
        raise DataError("is a damaged image: its picture cannot be decoded")
    return picture


def rgb_pixels(data: bytes, flags: int = cv2.IMREAD_COLOR) -> Frame | None:
    """(H, W, 3) RGB of 8 bits, HDR tone-mapped; None, or cv2's error, where it is damaged."""
    transfer, primaries = _png_transfer(data)
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), flags | (cv2.IMREAD_ANYDEPTH if transfer != "sdr" else 0))
    if picture is None:
        return None
    rgb_HWC = np.ascontiguousarray(picture[..., ::-1])
    if transfer == "sdr":
        return np.asarray(rgb_HWC, np.uint8)
    deep_HWC = rgb_HWC if rgb_HWC.dtype == np.uint16 else rgb_HWC.astype(np.uint16) * 257
    return tone_mapped(np.asarray(deep_HWC, np.uint16), transfer, primaries)


def _png_transfer(data: bytes) -> tuple[Transfer, int]:
    """What a PNG says of its values, and the number of its primaries; nothing else that is read here can be HDR."""
    if data[:8] == _PNG:
        for kind, start, _ in takewhile(lambda chunk: chunk[0] != b"IDAT", _chunks(data)):
            if kind == b"cICP":
                return transfer_of(data[start + 1]), data[start]
    return "sdr", 1
