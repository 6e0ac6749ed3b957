"""Draws the frames of a Shot, (T, H, W, 3) uint8: one textured object moving over a quiet textured background.

Shape letters: T frames, H height, W width. Lengths are in picture sides, x to the right and y down.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Plane
from nemo_vfm.metrics.shape_reader import COLOURS, DIRECTIONS, distance


@dataclass(frozen=True, slots=True)
class Shot:
    """One uncut take.

    Args:
        colour: a name of COLOURS.
        shape: a name of SHAPES.
        direction: a name of DIRECTIONS, or None for an object that stands still.
        num_frames: length.
        radius: half the object's size, in sides.
        lateral: where the path lies across the direction of motion, in sides.
        travel: how far the object moves from first to last frame, in sides.
        brightness: of the background, 0 to 1.
        texture_seed: decides the tint and the texture of background and object.
        num_fade_frames: at the end of the shot the picture goes to black over so many frames.
        num_black_frames: black frames after that, counted in `num_frames`.
    """

    colour: str
    shape: str
    direction: str | None
    num_frames: int
    radius: float
    lateral: float
    travel: float
    brightness: float
    texture_seed: int
    num_fade_frames: int = 0
    num_black_frames: int = 0

    def caption(self) -> str:
        """What the shot shows, in the words a prompt would use."""
        motion = "standing still" if self.direction is None else f"moving {self.direction}"
        return f"a {self.colour} {self.shape} {motion}"


def draw(shot: Shot, *, side_px: int) -> NDArray[np.uint8]:
    """The frames of a shot, (T, H, W, 3). Equal shots give equal bytes."""
    random = np.random.default_rng(shot.texture_seed)
    background_HW3 = _background(random, shot.brightness, side_px)
    texture = _ObjectTexture.draw(random)
    frames = np.empty((shot.num_frames, side_px, side_px, 3), np.uint8)
    for index, (x, y) in enumerate(_path(shot)):
        picture = background_HW3.copy()
        _paint(picture, shot, texture, x, y)
        frames[index] = np.round(np.clip(picture * _light(shot, index), 0, 1) * 255)
    return frames


def _path(shot: Shot) -> NDArray[np.float64]:
    """Centre of the object in each frame, (T, 2), in sides."""
    dx, dy = DIRECTIONS.get(shot.direction or "", (0, 0))
    along_T = np.linspace(-0.5, 0.5, shot.num_frames) * shot.travel
    across = shot.lateral - 0.5
    return 0.5 + np.stack([along_T * dx + across * abs(dy), along_T * dy + across * abs(dx)], axis=1)


def _light(shot: Shot, index: int) -> float:
    """1 in the open, falling to 0 during a fade at the end."""
    if not shot.num_fade_frames:
        return 1.0
    return float(np.clip((shot.num_frames - shot.num_black_frames - index) / shot.num_fade_frames, 0, 1))


def _background(random: np.random.Generator, brightness: float, side_px: int) -> Plane:
    """A low-saturation wash of two tints under soft clouds and a fine grain, (H, W, 3) in [0, 1]."""
    angle, tint_a, tint_b = random.uniform(0, 2 * np.pi), *random.uniform(-0.045, 0.045, (2, 3))
    axis = np.linspace(-0.5, 0.5, side_px, dtype=np.float32)
    ramp_HW = 0.5 + 0.7 * (axis[None, :] * np.cos(angle) + axis[:, None] * np.sin(angle))
    wash_HW3 = ramp_HW[..., None] * tint_a + (1 - ramp_HW[..., None]) * tint_b
    relief_HW = 0.10 * (ramp_HW - 0.5) + 0.05 * _clouds(random, side_px, 5) + 0.03 * _clouds(random, side_px, 16)
    grain_HW = 0.045 * _clouds(random, side_px, side_px // 2)
    picture: Plane = (brightness + relief_HW + grain_HW)[..., None] + wash_HW3
    return picture.astype(np.float32)


def _clouds(random: np.random.Generator, side_px: int, num_cells: int) -> Plane:
    """Smooth noise of about `num_cells` bumps a side, in [-1, 1], (H, W)."""
    grid = random.uniform(-1, 1, (num_cells + 1, num_cells + 1))
    position = np.linspace(0, num_cells, side_px, endpoint=False)
    low = position.astype(int)
    part = position - low
    blend = np.zeros((side_px, num_cells + 1))
    smooth = part * part * (3 - 2 * part)
    blend[np.arange(side_px), low], blend[np.arange(side_px), low + 1] = 1 - smooth, smooth
    noise: Plane = (blend @ grid @ blend.T).astype(np.float32)
    return noise


@dataclass(frozen=True, slots=True)
class _ObjectTexture:
    """Soft stripes across the object: how many, at which angle, how strong."""

    frequency: float
    angle: float
    strength: float

    @classmethod
    def draw(cls, random: np.random.Generator) -> "_ObjectTexture":
        return cls(random.uniform(4, 8), random.uniform(0, np.pi), random.uniform(0.04, 0.11))

    def shade(self, x: Plane, y: Plane) -> Plane:
        """Brightness factor at object coordinates: stripes, and light from the upper left."""
        stripes = np.sin(self.frequency * (x * np.cos(self.angle) + y * np.sin(self.angle)))
        shade: Plane = 1 + self.strength * stripes - 0.08 * (x + y)
        return shade


def _paint(picture_HW3: Plane, shot: Shot, texture: _ObjectTexture, x: float, y: float) -> None:
    """Lay the object and its soft shadow over the picture, in place, touching only the pixels around it."""
    side = picture_HW3.shape[0]
    reach = 1.6 * shot.radius
    left, top = (max(0, int((centre - reach) * side)) for centre in (x, y))
    right, bottom = (min(side, int((centre + reach) * side) + 1) for centre in (x, y))
    patch = picture_HW3[top:bottom, left:right]
    u = ((np.arange(left, right, dtype=np.float32) + 0.5) / side - x)[None, :] / shot.radius
    v = ((np.arange(top, bottom, dtype=np.float32) + 0.5) / side - y)[:, None] / shot.radius
    softness_px = shot.radius * side
    shadow = 0.22 * np.clip(0.5 - distance(shot.shape, u - 0.12, v - 0.18) * 3, 0, 1)
    cover = np.clip(0.5 - distance(shot.shape, u, v) * softness_px, 0, 1)[..., None]
    colour = np.array(COLOURS[shot.colour], np.float32) / 255 * texture.shade(u, v)[..., None]
    patch[...] = patch * (1 - shadow[..., None]) * (1 - cover) + colour * cover
