"""Names the outline of an object, given as positive weights (T, H, W), by the best-fitting template.

In each frame every outline is placed at the object's centre, as large as the object's spread says and a little smaller
and larger. The fit is intersection over union. The best mean over the frames wins.

Shape letters: T frames, H height, W width, X any number of points.
"""

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Plane

#: The outlines that can be told.
SHAPES: Final = ("circle", "square", "triangle", "cross")
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
