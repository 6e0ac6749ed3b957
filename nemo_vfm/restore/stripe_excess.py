# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Some frames of a clip in; how much more power stripes of each direction have than their surroundings out.

Stripes of one direction that cross the whole frame lie on one line of the Fourier plane. The line is compared with
lines beside it, between which any texture makes no difference. An edge in the scene makes such a line, too, but not
everywhere: the frame is looked at in tiles, and a direction is worth what it has in the tile that a quarter of the
tiles do not reach.

Shape letters: T frames, H height, W width, N tiles, S a tile's side, R radii, A = 180 directions.
"""

from functools import lru_cache
from math import ceil

import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.float32]
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


def stripe_excess_db(luma_THW: Plane | NDArray[np.uint8]) -> Plane:
    """The excess of each direction from 0 to 179 degrees, counter-clockwise from vertical stripes, (A,), in dB.

    All 0 where a side is shorter than 64 pixels: nothing can be told from so little. On real footage without stripes
    the largest was 3.0 (10 clips), with seeded white stripes of sigma 5 of 255 grey levels at least 8.2, of sigma 3
    at least 5.3; in pictures that are all edges, sigma 5 reached 4.7.
    """
    if min(luma_THW.shape[1:]) < _TILE_PX:
        return np.zeros(180, np.float32)
    power_NSK = _log_power(_tiles(luma_THW))
    on, beside = _lines(_TILE_PX)
    excess_NAR = _mean(power_NSK, on) - _mean(power_NSK, beside)
    rings_NA = np.stack([ring.mean(2) for ring in np.array_split(excess_NAR, _RINGS, axis=2)])
    # The median over rings: a pattern of one pitch, such as a coder's blocks, fills few of them.
    return np.asarray(np.percentile(np.median(rings_NA, axis=0), _TILES_BELOW_PERCENT, axis=0), np.float32)


def _tiles(luma_THW: Plane | NDArray[np.uint8]) -> NDArray[np.float32]:
    """Tiles that cover the frame and overlap by about a third, (N, T, S, S)."""
    rows, columns = (_starts(length) for length in luma_THW.shape[1:])
    tiles = [luma_THW[:, row : row + _TILE_PX, column : column + _TILE_PX] for row in rows for column in columns]
    return np.stack(tiles).astype(np.float32)


def _starts(length: int) -> list[int]:
    count = ceil(_TILES_A_LENGTH * length / _TILE_PX) if length > _TILE_PX else 1
    return [int(start) for start in np.linspace(0, length - _TILE_PX, count).round()]


def _log_power(tiles_NTSS: NDArray[np.float32]) -> NDArray[np.float32]:
    """dB per pixel of each tile's mean over time, on the half plane, (N, S, K)."""
    window_S = np.hanning(tiles_NTSS.shape[-1] + 2)[1:-1].astype(np.float32)
    window_SS = window_S[:, None] * window_S
    level = tiles_NTSS.mean((-2, -1), keepdims=True)
    # A tile at a time: the spectra of a 4K clip would fill a gigabyte.
    spectra = (np.fft.rfft2((tile - mean) * window_SS) for tile, mean in zip(tiles_NTSS, level, strict=True))
    energy = float((window_SS**2).sum())
    return np.stack([(10 * np.log10(np.abs(s) ** 2 / energy + _FLOOR)).mean(0) for s in spectra]).astype(np.float32)


def _mean(power_NSK: NDArray[np.float32], places: list[Places]) -> NDArray[np.float32]:
    """The mean over lines, (N, A, R)."""
    total = power_NSK[:, *places[0]].copy()
    for place in places[1:]:
        total += power_NSK[:, *place]
    return np.asarray(total / len(places), np.float32)


@lru_cache(maxsize=8)
def _lines(side: int) -> tuple[list[Places], list[Places]]:
    """Where on the half plane the lines of all directions lie, and those beside them."""
    return [_line(side, offset) for offset in _ON], [_line(side, offset) for offset in _BESIDE]


def _line(side: int, offset: int) -> Places:
    """Of each direction, the places at all radii on the line `offset` steps beside the one through the origin."""
    radius_1R = np.arange(_SLOWEST, side / 2 - 1)[None]
    theta_A1 = np.radians(np.arange(180))[:, None]
    y_AR = np.round(-radius_1R * np.sin(theta_A1) - offset * np.cos(theta_A1)).astype(np.intp)
    x_AR = np.round(radius_1R * np.cos(theta_A1) - offset * np.sin(theta_A1)).astype(np.intp)
    left = x_AR < 0  # the other half holds the same, mirrored at the origin
    # Close to the corner a neighbour may lie outside the plane, which goes on with its other side.
    return np.where(left, -y_AR, y_AR) % side, np.minimum(np.abs(x_AR), side // 2)
