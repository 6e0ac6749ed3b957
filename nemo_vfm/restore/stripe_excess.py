"""Measures how much more power stripes of each direction have than their surroundings, in some frames of a clip.

Stripes of one direction that cross the whole frame lie on one line of the Fourier plane. The line is compared with
lines beside it; any texture adds to all of them alike. An edge in the scene makes such a line, too, but not everywhere.
So the frame is divided into tiles, and the excess of a direction is the lower quartile over the tiles.

Shape letters: T frames, H height, W width, N tiles, S a tile's side, R radii, A = 180 directions.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Plane

Places = tuple[NDArray[np.intp], NDArray[np.intp]]

# Of 64 to 256 pixels, these set clean clips and stripes furthest apart (3.0 dB at most, 15.9 at least at sigma 14); at
# 256 a letterbox had 13 dB, being in every tile.
_TILE_PX = 64
_TILES_A_LENGTH = 1.5
_FLOOR = 0.25  # grey levels squared a pixel: rounding and coding noise on flat ground are no signal
_SLOWEST = 8  # cycles per tile; below, shading and large edges rule
_ON, _BESIDE = (-1, 0, 1), (-8, -7, -6, -5, -4, 4, 5, 6, 7, 8)  # lines of the plane; the window blurs by 2
_RINGS = 8
_TILES_BELOW_PERCENT = 25
_FEWEST_TILES = 4
_MAX_STARTS = 96  # a side: those of 4096 pixels; a mosaic's tiles then have gaps between them
_BANDS = 4  # where stripes end within the picture
_HALF_DB = 3.0  # more than for stripes across the whole picture; half of a clean clip had up to 6.6 dB


@dataclass(frozen=True, slots=True)
class StripeExcess:
    """The excess of each direction from 0 to 179 degrees, counter-clockwise from vertical stripes, in dB.

    All 0 where a side is shorter than 64 pixels: nothing can be told from so little.
    """

    tiles_NA: Plane  #: of each tile
    places: tuple[tuple[int, int], ...]  #: of each tile, the row and the column it begins in
    size: tuple[int, int]  #: height and width

    @classmethod
    def of(cls, luma_THW: Plane | NDArray[np.uint8]) -> "StripeExcess":
        """Look at some frames of a clip."""
        height, width = luma_THW.shape[1:]
        if min(height, width) < _TILE_PX:
            return cls(np.zeros((0, 180), np.float32), (), (height, width))
        places = tuple((row, column) for row in _starts(height) for column in _starts(width))
        window_S = np.hanning(_TILE_PX + 2)[1:-1].astype(np.float32)
        window_SS = window_S[:, None] * window_S
        energy, powers = float((window_SS**2).sum()), []
        for y, x in places:  # a tile at a time: the spectra of a 4K clip would fill a gigabyte
            tile_TSS = luma_THW[:, y : y + _TILE_PX, x : x + _TILE_PX].astype(np.float32)
            spectra_TSK = np.fft.rfft2((tile_TSS - tile_TSS.mean((-2, -1), keepdims=True)) * window_SS)
            # dB per pixel, the mean over time, on the half plane.
            powers.append(np.asarray((10 * np.log10(np.abs(spectra_TSK) ** 2 / energy + _FLOOR)).mean(0), np.float32))
        power_NSK = np.stack(powers)
        # Where on the half plane the lines of all directions lie, and those beside them.
        on, beside = ([_line(_TILE_PX, offset) for offset in offsets] for offsets in (_ON, _BESIDE))
        excess_NAR = _mean(power_NSK, on) - _mean(power_NSK, beside)
        rings = [ring_NAR.mean(2) for ring_NAR in np.array_split(excess_NAR, _RINGS, axis=2)]
        # The median over rings: a pattern of one pitch, such as a coder's blocks, fills few of them.
        return cls(np.asarray(np.median(np.stack(rings), axis=0), np.float32), places, (height, width))

    def whole_db(self) -> Plane:
        """Of stripes across the whole picture, (A,).

        On real footage without stripes the largest was 3.0 (10 clips), with seeded white stripes of sigma 5 of 255 grey
        levels at least 8.2, of sigma 3 at least 5.3; in pictures that are all edges, sigma 5 reached 4.7.
        """
        return self._within(0, 0, *self.size)

    def half_db(self) -> Plane:
        """Of stripes half as long as the picture, in that half of three in which it is largest, (A,).

        Upright ones are looked for in halves of the height: a pole would be in most tiles of half of the width.
        """
        height, width = self.size
        rows = [self._within(part.start, 0, height // 2, width) for part in halves(height)]
        columns = [self._within(0, part.start, height, width // 2) for part in halves(width)]
        upright_A = np.abs((np.arange(180) + 90) % 180 - 90) <= 45
        return np.asarray(np.where(upright_A, np.max(rows, axis=0), np.max(columns, axis=0)), np.float32)

    def strongest_direction(self, theta_deg: float | Literal["auto"], min_excess_db: float) -> tuple[float, int] | None:
        """The direction of stripes, and in how many bands to look for them; None where there are none.

        Args:
            theta_deg: the only direction that counts; `auto` takes that of the largest excess.
            min_excess_db: from where on there are stripes.
        """
        for bands, excess_A in ((1, self.whole_db()), (_BANDS, self.half_db() - _HALF_DB)):
            theta = float(excess_A.argmax()) if theta_deg == "auto" else theta_deg
            if excess_A[round(theta) % 180] >= min_excess_db:
                return theta, bands
        return None

    def of_stripes_db(self, theta_deg: float, bands: int) -> float:
        """Of a direction and a number of bands that `strongest_direction` gave."""
        excess_A = self.whole_db() if bands == 1 else self.half_db()
        return float(excess_A[round(theta_deg) % 180])

    def _within(self, top: int, left: int, height: int, width: int) -> Plane:
        """What three quarters of the tiles in a part of the picture reach; 0 where it has few."""
        inside = [
            number for number, (row, column) in enumerate(self.places)
            if top <= row <= top + height - _TILE_PX and left <= column <= left + width - _TILE_PX
        ]  # fmt: skip
        if not inside or (len(inside) < _FEWEST_TILES and len(inside) < len(self.places)):
            return np.zeros(180, np.float32)
        return np.asarray(np.percentile(self.tiles_NA[inside], _TILES_BELOW_PERCENT, axis=0), np.float32)


def halves(length: int) -> list[slice]:
    """The first, the middle and the last half of a side."""
    return [slice(first, first + length // 2) for first in (0, length // 4, length - length // 2)]


def _starts(length: int) -> list[int]:
    count = min(ceil(_TILES_A_LENGTH * length / _TILE_PX), _MAX_STARTS) if length > _TILE_PX else 1
    return [int(start) for start in np.linspace(0, length - _TILE_PX, count).round()]


def _mean(power_NSK: NDArray[np.float32], places: list[Places]) -> NDArray[np.float32]:
    """The mean over lines, (N, A, R)."""
    total = power_NSK[:, *places[0]].copy()
    for place in places[1:]:
        total += power_NSK[:, *place]
    return np.asarray(total / len(places), np.float32)


@lru_cache(maxsize=64)
def _line(side: int, offset: int) -> Places:
    """Of each direction, the places at all radii on the line `offset` steps beside the one through the origin."""
    radius_1R = np.arange(_SLOWEST, side / 2 - 1)[None]
    theta_A1 = np.radians(np.arange(180))[:, None]
    y_AR = np.round(-radius_1R * np.sin(theta_A1) - offset * np.cos(theta_A1)).astype(np.intp)
    x_AR = np.round(radius_1R * np.cos(theta_A1) - offset * np.sin(theta_A1)).astype(np.intp)
    left = x_AR < 0  # the other half holds the same, mirrored at the origin
    # Close to the corner a neighbour may lie outside the plane, which goes on with its other side.
    return np.where(left, -y_AR, y_AR) % side, np.minimum(np.abs(x_AR), side // 2)


def require_wedge(theta_deg: float | Literal["auto"], wedge_deg: float, kmin: float) -> None:
    """Check the frequencies in which stripes are looked for.

    Raises:
        ValueError: one is out of range.
    """
    if theta_deg != "auto" and not 0 <= theta_deg <= 180:
        raise ValueError(f"theta_deg is {theta_deg}; give auto, or a direction from 0 to 180 degrees")
    if not 0 < wedge_deg <= 90:
        raise ValueError(f"wedge_deg is {wedge_deg}; it must be above 0 and at most 90 degrees")
    if kmin < 1:
        raise ValueError(f"kmin is {kmin} cycles per picture; it must be at least 1, or the mean brightness is lost")
