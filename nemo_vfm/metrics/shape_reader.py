"""Reads the colour, outline and direction of one coloured object in a video (T, H, W, 3), without any model.

The object is the region more saturated than the border of the picture. Its colour is the palette hue nearest to most of
it. Its outline is the template that fits it best: in each frame every outline is placed at the object's centre, as
large as its spread says and a little smaller and larger, and the best mean intersection over union wins. Its direction
is the line fitted through its centre of mass over time. Where there is no compact saturated patch, as in noise or in an
empty picture, the reading holds None.

Shape letters: T frames, H height, W width, X any number of points.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Plane

#: The outlines that can be told.
SHAPES: Final = ("circle", "square", "triangle", "cross")
#: The palette, RGB in [0, 255]. The four hues lie at least 45 degrees apart, so that a nearest hue is a clear vote.
COLOURS: Final = {"red": (214, 48, 49), "green": (38, 166, 91), "blue": (41, 98, 217), "yellow": (244, 203, 46)}
#: Unit displacement (x to the right, y down) of each direction.
DIRECTIONS: Final = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


@dataclass(frozen=True, slots=True)
class ShapeReading:
    """What was seen."""

    colour: str | None  #: a name of COLOURS, or None where no object was found
    direction: str | None  #: a name of DIRECTIONS, or None where no object was found or it did not move
    travel: tuple[float, float] = (0.0, 0.0)  #: displacement over the clip along x and y, in picture sides
    shape: str | None = None  #: a name of SHAPES, or None where no object was found


def read(video_THWC: NDArray[np.uint8]) -> ShapeReading:
    """Find the object, name its colour, its outline and the direction it moves in.

    Raises:
        ValueError: the array is not (T, H, W, 3) uint8 with at least two frames.
    """
    if video_THWC.ndim != 4 or video_THWC.shape[-1] != 3 or video_THWC.shape[0] < 2 or video_THWC.dtype != np.uint8:
        raise ValueError(f"expected uint8 frames (T >= 2, H, W, 3), got {video_THWC.dtype} {video_THWC.shape}")
    video = video_THWC.astype(np.float32) / np.float32(255)
    # How much more saturated each pixel is than the border: 0 in the background.
    chroma_THW = video.max(-1) - video.min(-1)
    edge = np.concatenate([chroma_THW[:, 0], chroma_THW[:, -1], chroma_THW[:, :, 0], chroma_THW[:, :, -1]], axis=1)
    floor = max(_MIN_CHROMA, float(np.median(edge)) + 0.1)
    weight_THW: NDArray[np.float32] = np.clip(chroma_THW - floor, 0, None)
    # Frames in which the saturated pixels form one compact patch of a sane size.
    area_T = (weight_THW > 0).mean((1, 2))
    _, _, spread_T = _moments(weight_THW)
    seen_T: NDArray[np.bool_] = (area_T > _AREA[0]) & (area_T < _AREA[1]) & (spread_T < _MAX_SPREAD)
    if seen_T.sum() < max(2, len(video) // 2):
        return ShapeReading(None, None)
    colour = _colour(video[seen_T], weight_THW[seen_T])
    if colour is None:
        return ShapeReading(None, None)
    x_T, y_T, spread_T = _moments(weight_THW[seen_T])
    centre_T2 = np.stack([x_T, y_T], axis=1)
    # Displacement from the first to the last frame by a least-squares line through the centres.
    slope_x, slope_y = np.polyfit(np.flatnonzero(seen_T), centre_T2, 1)[0]
    span = len(seen_T) - 1
    travel = float(slope_x * span), float(slope_y * span)
    along = {name: travel[0] * dx + travel[1] * dy for name, (dx, dy) in DIRECTIONS.items()}
    best = max(along, key=lambda name: along[name])
    direction = best if along[best] >= _MIN_TRAVEL else None
    return ShapeReading(colour, direction, travel, outline(weight_THW[seen_T], centre_T2, spread_T))


_SIZES = (0.85, 0.92, 1.0, 1.08, 1.16)  # of the one that the spread says: blur and shadow widen an object


def distance(shape: str, u: Plane, v: Plane) -> Plane:
    """Signed distance to the outline in radii, negative inside; (u, v) in radii from the centre of mass."""
    a, b = np.abs(u), np.abs(v)
    if shape == "circle":
        return np.asarray(np.hypot(u, v) - 1, np.float32)
    if shape == "square":
        return np.asarray(np.maximum(a, b) - 0.88, np.float32)
    if shape == "triangle":
        return np.asarray(np.maximum(0.866 * a - 0.5 * v, v + 0 * u) - 0.62, np.float32)
    if shape == "cross":
        return np.asarray(np.maximum(np.minimum(a, b) - 0.36, np.maximum(a, b) - 1.05), np.float32)
    raise ValueError(f"unknown shape {shape!r}; known are {', '.join(SHAPES)}")


def outline(weight_THW: Plane, centre_T2: NDArray[np.float64], spread_T: NDArray[np.float64]) -> str:
    """The name of the outline.

    Args:
        weight_THW: above 0 on the object.
        centre_T2: x and y of its centre, in picture sides.
        spread_T: root mean square distance from it, in picture sides.
    """
    cover_THW = np.minimum(weight_THW / np.median(weight_THW[weight_THW > 0]), 1)
    fits = {
        shape: np.mean([
            _fit(shape, cover_HW, x, y, spread / _spread(shape))
            for cover_HW, (x, y), spread in zip(cover_THW, centre_T2, spread_T, strict=True)
        ])
        for shape in SHAPES
    }  # fmt: skip
    return max(fits, key=lambda shape: float(fits[shape]))


def _fit(shape: str, cover_HW: Plane, x: float, y: float, radius: float) -> float:
    """Intersection over union at the best size."""
    height, width = cover_HW.shape
    right_W, down_H = (np.arange(width) + 0.5) / width - x, (np.arange(height) + 0.5) / height - y
    best = 0.0
    for size in (max(radius, 1 / width) * factor for factor in _SIZES):  # an object may be a single pixel
        template = _cover(shape, (right_W / size)[None, :], (down_H / size)[:, None], size * width)
        best = max(best, float(np.minimum(template, cover_HW).sum() / np.maximum(template, cover_HW).sum()))
    return best


def _cover(shape: str, u: Plane, v: Plane, radius_px: float) -> Plane:
    """How much of each pixel lies inside, 0 to 1."""
    cover: Plane = np.clip(0.5 - distance(shape, u, v) * np.float32(radius_px), 0, 1)
    return cover


@cache
def _spread(shape: str) -> float:
    """Root mean square distance of an outline's points from its centre, in radii."""
    axis = np.linspace(-1.5, 1.5, 301, dtype=np.float32)
    cover = _cover(shape, axis[None, :], axis[:, None], 100.0)
    return float(np.sqrt((cover * (axis[None, :] ** 2 + axis[:, None] ** 2)).sum() / cover.sum()))


_MIN_CHROMA = 0.22  # backgrounds stay below 0.15, palette colours lie above 0.5, also after x264 at crf 28
_AREA = (0.004, 0.35)  # of the picture: smaller is a speck, larger is no object
_MIN_MAJORITY = 0.55  # of the object's chroma that must agree on one colour; noise splits evenly
_MAX_SPREAD = 0.24  # root mean square distance from the centre, in sides; a uniform picture has 0.41
_MIN_TRAVEL = 0.06  # of the side over the whole clip; the drawn objects travel 0.2 and more


def _moments(weight_THW: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Centre of mass x, y and root mean square distance from it, each (T,), in picture sides."""
    _, height, width = weight_THW.shape
    mass_T = weight_THW.sum((1, 2), dtype=np.float64) + 1e-9
    x_W, y_H = (np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height
    columns_TW, rows_TH = weight_THW.sum(1) / mass_T[:, None], weight_THW.sum(2) / mass_T[:, None]
    x_T, y_T = columns_TW @ x_W, rows_TH @ y_H
    variance_T = columns_TW @ x_W**2 - x_T**2 + rows_TH @ y_H**2 - y_T**2
    return x_T, y_T, np.sqrt(np.clip(variance_T, 0, None))


def _colour(video_THWC: NDArray[np.float32], weight_THW: NDArray[np.float32]) -> str | None:
    """The palette hue that most of the object is nearest to; None without a majority."""
    inside = weight_THW > 0
    palette = np.array(list(COLOURS.values()), np.float32) / np.float32(255)
    rgb_N3 = np.concatenate([video_THWC[inside], palette])
    # The unit vector of each colour's hue: the part of RGB at right angles to grey.
    hue_N3 = rgb_N3 - rgb_N3.mean(-1, keepdims=True)
    hue_N3 /= np.linalg.norm(hue_N3, axis=-1, keepdims=True) + 1e-6
    votes = np.argmax(hue_N3[: -len(palette)] @ hue_N3[-len(palette) :].T, axis=1)
    share = np.bincount(votes, weights=weight_THW[inside], minlength=len(COLOURS))
    best = int(share.argmax())
    return list(COLOURS)[best] if share[best] >= _MIN_MAJORITY * share.sum() else None
