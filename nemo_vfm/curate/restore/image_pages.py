"""Reads the pages of TIFF and PNG files, removes their stripes, and puts changed pixels back.

Pages may have any unit and pixel type; every other byte of a file stays. Shape letters: H height, W width, S samples of
a pixel.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, MissingPackage
from nemo_vfm.core.optional import require
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.core.types.media_types import Plane
from nemo_vfm.restore.stripe_excess import StripeExcess, require_wedge
from nemo_vfm.restore.stripes import refine_deg

if TYPE_CHECKING:
    from torch import Tensor


End = float | Literal["auto"] | None
TIFF_SUFFIXES = frozenset({".tif", ".tiff", ".btf", ".tf8"})
PNG_SUFFIX = ".png"
_PIXELS = ("uint8", "uint16", "float32")
_CODECS = {1: "none", 5: "LZW", 8: "Deflate", 32946: "Deflate", 34925: "LZMA", 50000: "ZSTD"}  # without loss
_PALETTE = 3  # of TIFF and of PNG alike
_PNG_SAMPLES = {0: 1, 2: 3, 6: 4}  # by colour type; grey with alpha and palettes would come back as others
Pixels = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PageStripes:
    """Stripes of one picture."""

    added_HW: Plane  #: what they add to it
    theta_deg: float  #: their direction
    bands: int  #: in how many they were looked for; 1 where they cross the whole picture
    excess_db: float  #: of the picture with them


class StripeFinder:
    """Finds the stripes of pictures; arguments as those of `DestripeImages`."""

    def __init__(
        self, *, theta_deg: float | Literal["auto"], wedge_deg: float, kmin: float, min_excess_db: float,
        black: End, white: End,
    ) -> None:  # fmt: skip
        require_wedge(theta_deg, wedge_deg, kmin)
        self.theta_deg, self.wedge_deg, self.kmin, self.min_excess_db = theta_deg, wedge_deg, kmin, min_excess_db
        self.black, self.white = black, white

    def ends(self, dtype: np.dtype[Any]) -> tuple[float | None, float | None]:
        """Black and white of pixels of this type; `auto` means the ends of an integer, and none of a float."""
        limits = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind == "u" else (None, None)
        asked = (self.black, self.white)
        found = [end if value == "auto" else value for value, end in zip(asked, limits, strict=True)]
        black, white = (None if value is None else float(value) for value in found)
        return black, white

    def find(self, picture_HW: Plane, ends: tuple[float | None, float | None]) -> PageStripes | None:
        """The stripes of a picture; None where it has none. What is no number is looked past."""
        import torch

        from nemo_vfm.restore.stripes import known_frequencies, stripes

        seen_HW = torch.from_numpy(picture_HW)
        grey_HW = _in_grey_levels(seen_HW, ends)
        excess = StripeExcess.of(grey_HW[None])
        if (found := excess.strongest_direction(self.theta_deg, self.min_excess_db)) is None:
            return None
        theta, bands = found
        exact = refine_deg(grey_HW[None], theta) if self.theta_deg == "auto" else theta
        known = known_frequencies(*picture_HW.shape, theta_deg=exact, wedge_deg=self.wedge_deg, kmin=self.kmin)
        added_HW = stripes(
            seen_HW, known, theta_deg=exact, kmin=self.kmin, bands=bands, black=ends[0], white=ends[1]
        ).numpy()
        return PageStripes(added_HW, exact, bands, excess.of_stripes_db(theta, bands))


def excess_db(picture_HW: Plane, ends: tuple[float | None, float | None], like: PageStripes) -> float:
    """The excess of a picture in the direction of stripes that were found."""
    import torch

    grey_HW = _in_grey_levels(torch.from_numpy(picture_HW), ends)
    return StripeExcess.of(grey_HW[None]).of_stripes_db(like.theta_deg, like.bands)


def share_of(picture_HW: Plane, stripes_HW: Plane) -> float:
    """How much of these stripes a picture holds: near 1 where they are in it, near 0 where they are not."""
    seen_HW = np.isfinite(picture_HW)
    added_HW = np.where(seen_HW, stripes_HW, 0)
    level = float(np.median(picture_HW[seen_HW])) if seen_HW.any() else 0.0
    power = float(np.square(added_HW, dtype=np.float64).sum())
    return float((added_HW * np.where(seen_HW, picture_HW - level, 0)).sum(dtype=np.float64)) / (power or 1.0)


def without_stripes(
    stored_HW: NDArray[Any], stripes_HW: Plane, ends: tuple[float | None, float | None]
) -> tuple[NDArray[Any], int]:
    """A picture without them, in its own type, and how many pixels had to be held between black and white."""
    import torch

    from nemo_vfm.restore.stripes import without

    striped_HW = stored_HW.astype(np.float32)
    clean_HW = without(torch.from_numpy(striped_HW), torch.from_numpy(stripes_HW), black=ends[0], white=ends[1]).numpy()
    limits = (np.iinfo(stored_HW.dtype).min, np.iinfo(stored_HW.dtype).max) if stored_HW.dtype.kind == "u" else ends
    low, high = (limit if end is None else end for limit, end in zip(limits, ends, strict=True))
    free_HW = np.subtract(striped_HW, stripes_HW, out=striped_HW)
    held = 0 if low is None else int(np.count_nonzero(free_HW < low - 0.5))
    held += 0 if high is None else int(np.count_nonzero(free_HW > high + 0.5))
    if stored_HW.dtype.kind == "u":
        clean_HW = np.clip(np.rint(clean_HW), *limits)
    return clean_HW.astype(stored_HW.dtype), held


def _in_grey_levels(picture_HW: "Tensor", ends: tuple[float | None, float | None]) -> Plane:
    """As 0 to 255 of its own spread, which stripes are looked for in; 0 where it is no number."""
    from nemo_vfm.restore.stripes import at_ends, grey_levels

    black_HW, white_HW = at_ends(picture_HW, *ends)
    low, level = grey_levels(picture_HW, black_HW | white_HW | ~picture_HW.isfinite())
    return np.asarray(((picture_HW - low) / level).nan_to_num_(0, 0, 0).numpy(), np.float32)


@contextmanager
def open_pages(path: Path, *, change: bool = False) -> "Iterator[TiffPages | PngPage]":
    """The pages of a file; with `change` they can be written."""
    if path.suffix.lower() == PNG_SUFFIX:
        yield PngPage(path)
        return
    tifffile = require("tifffile", purpose="Reading a TIFF")
    try:
        with tifffile.TiffFile(path, mode="r+b" if change else "rb") as tiff:
            yield TiffPages(tiff)
    except MissingPackage:
        raise
    except (tifffile.TiffFileError, ValueError, KeyError, IndexError, RuntimeError, struct.error) as error:
        raise DataError(f"cannot be read or written as a TIFF: {error}") from error


class TiffPages:
    """The pages of a TIFF. Pixels are encoded as they were; what has grown goes to the file's end."""

    def __init__(self, tiff: Any) -> None:
        self._tiff = tiff
        # ImageJ describes only the first of many pages that lie one after the other.
        series = tiff.series[0] if len(tiff.pages) == 1 and tiff.is_imagej and tiff.series else None
        self._run_of = series.size // tiff.pages[0].size if series is not None else 1

    def __len__(self) -> int:
        return self._run_of if self._run_of > 1 else len(self._tiff.pages)

    def read(self, place: int) -> Pixels:
        """The pixels of one page, (H, W) or (H, W, S), without its alpha.

        Raises:
            DataError: they cannot be written back as they are stored.
        """
        if self._run_of > 1:
            page = self._require_page(0)
            file = self._tiff.filehandle
            file.seek(page.dataoffsets[0] + place * page.nbytes)
            pixels = np.frombuffer(file.read(page.nbytes), self._stored_dtype(page)).reshape(page.shape)
            return pixels.astype(page.dtype)
        page = self._require_page(place)
        pixels = np.asarray(page.asarray())
        pixels = np.moveaxis(pixels, 0, -1) if page.axes == "SYX" else pixels
        return pixels[..., : pixels.shape[2] - len(page.extrasamples)] if pixels.ndim == 3 else pixels

    def write(self, place: int, pixels: Pixels) -> None:
        """Replace the pixels that `read` gave."""
        if self._run_of > 1:
            page = self._require_page(0)
            self._tiff.filehandle.seek(page.dataoffsets[0] + place * page.nbytes)
            self._tiff.filehandle.write(np.ascontiguousarray(pixels, self._stored_dtype(page)).tobytes())
            return
        page = self._require_page(place)
        self._put(page, self._with_alpha(page, pixels))
        for smaller in page.pages or ():  # the levels of a pyramid
            height, width = smaller.imagelength, smaller.imagewidth
            level = cv2.resize(np.ascontiguousarray(pixels), (width, height), interpolation=cv2.INTER_AREA)
            self._put(smaller, self._with_alpha(smaller, np.asarray(level, pixels.dtype)))

    def _require_page(self, place: int) -> Any:
        """A page that can be read and written back."""
        page = self._tiff.pages[place]
        what = ""
        if page.dtype is None or page.dtype.name not in _PIXELS or page.bitspersample != 8 * page.dtype.itemsize:
            what = f"has {page.bitspersample} bits of {page.dtype}, but pixels must be one of {', '.join(_PIXELS)}"
        elif page.compression not in _CODECS:
            known = ", ".join(dict.fromkeys(_CODECS.values()))
            what = f"is compressed by {page.compression.name}; save it with one of {known}"
        elif page.photometric == _PALETTE:
            what = "has a palette; save it in grey or RGB"
        elif page.axes not in ("YX", "YXS", "SYX") or page.fillorder != 1:
            what = f"has axes {page.axes}; save it as pages of rows and columns"
        if what:
            raise DataError(f"page {place} {what}")
        if page.compression not in (1, 8, 32946) or page.predictor == 3:
            require("imagecodecs", purpose=f"A TIFF compressed by {_CODECS[page.compression]}")
        return page

    def _stored_dtype(self, page: Any) -> Any:
        return np.dtype(page.dtype).newbyteorder(self._tiff.byteorder)

    def _with_alpha(self, page: Any, pixels: Pixels) -> Pixels:
        """As it is stored: with the samples that `read` left out, and in their order."""
        if page.axes == "YX":
            return pixels
        stored = np.array(page.asarray())
        view = np.moveaxis(stored, 0, -1) if page.axes == "SYX" else stored
        view[..., : pixels.shape[2]] = pixels
        return stored

    def _put(self, page: Any, stored: Pixels) -> None:
        tifffile = require("tifffile", purpose="Writing a TIFF")
        file, end = self._tiff.filehandle, self._tiff.filehandle.size
        kind = "Tile" if page.is_tiled else "Strip"
        offsets, counts = list(page.dataoffsets), list(page.databytecounts)
        for number, segment in enumerate(_segments(page, stored)):
            encoded = np.ascontiguousarray(segment, self._stored_dtype(page))
            if page.predictor != 1:
                encoded = np.asarray(tifffile.TIFF.PREDICTORS[page.predictor](encoded, axis=-2))
            data = encoded.tobytes()
            if page.compression != 1:
                data = bytes(tifffile.TIFF.COMPRESSORS[page.compression](data))
            if len(data) > counts[number]:
                end += end % 2
                offsets[number], end = end, end + len(data)
            counts[number] = len(data)
            file.seek(offsets[number])
            file.write(data)
        wide = "Q" if self._tiff.is_bigtiff else "I"
        for name, old, new in (("Offsets", page.dataoffsets, offsets), ("ByteCounts", page.databytecounts, counts)):
            if tuple(old) != tuple(new):
                page.tags[f"{kind}{name}"].overwrite(new, dtype=wide)
                end = file.seek(0, 2)


def _segments(page: Any, stored: Pixels) -> Iterator[Pixels]:
    """The strips or tiles of a page, in their order, (H, W, S) each; tiles reach over its edges."""
    planes = stored if page.axes == "SYX" else stored[None]
    height, width = page.imagelength, page.imagewidth
    rows, columns = (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, width)
    rows = min(rows, height) if not page.is_tiled else rows
    for plane in planes:
        for top in range(0, height, rows):
            for left in range(0, width, columns):
                part = plane[top : top + rows, left : left + columns]
                part = part if part.ndim == 3 else part[..., None]
                if page.is_tiled:
                    missing = ((0, rows - part.shape[0]), (0, columns - part.shape[1]), (0, 0))
                    part = np.pad(part, missing, mode="edge")
                yield part


@dataclass(frozen=True, slots=True)
class PngPage:
    """The one page of a PNG; see `TiffPages`. Chunks of text, resolution and colour profile stay."""

    _path: WritePath

    def __len__(self) -> int:
        return 1

    def read(self, place: int) -> Pixels:
        pixels = self._all()
        return pixels[..., :3] if pixels.ndim == 3 else pixels

    def write(self, place: int, pixels: Pixels) -> None:
        stored = self._all()
        if stored.ndim == 3:
            stored[..., :3] = pixels
        else:
            stored = pixels
        done, encoded = cv2.imencode(PNG_SUFFIX, stored)
        assert done
        old, new = list(_chunks(self._path.read_bytes())), list(_chunks(encoded.tobytes()))
        kept = [kind == b"IDAT" for kind, _ in old].index(True)
        before = [chunk for kind, chunk in old[1:kept]]
        after = [chunk for kind, chunk in old[kept:] if kind not in (b"IDAT", b"IEND")]
        pictures = [chunk for kind, chunk in new if kind == b"IDAT"]
        parts = [new[0][1], *before, *pictures, *after, new[-1][1]]
        self._path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))

    def _all(self) -> Pixels:
        """Colours come as blue, green, red, and go so."""
        data = self._path.read_bytes()
        kinds = {kind for kind, _ in _chunks(data)}
        bits, colours = data[24], data[25]
        if bits not in (8, 16) or colours not in _PNG_SAMPLES or {b"tRNS", b"acTL"} & kinds:
            raise DataError(
                "has a palette, fewer than 8 bits, grey with transparency or an animation; save it in grey or RGB"
            )
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if pixels is None or (pixels.shape[2] if pixels.ndim == 3 else 1) != _PNG_SAMPLES[colours]:
            raise DataError("is damaged: its picture cannot be decoded")
        return np.asarray(pixels)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each chunk of a PNG: its kind, and all of its bytes."""
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise DataError("is not a PNG, despite its name")
    place, kind = 8, b""
    while place + 12 <= len(data) and kind != b"IEND":
        size, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        yield kind, data[place : place + 12 + size]
        place += 12 + size
    if kind != b"IEND" or place > len(data):
        raise DataError("is truncated")
