"""Plans and draws the shots of every demo video, and says which combinations of colour, shape and direction none shows.

Of the 64 combinations 16 are held out, so that a sample of one cannot be copied from training. They form a Latin
square: every colour with every shape, every colour with every direction and every shape with every direction is held
out once and shown three times.

Shape letters: T frames, H height, W width. Lengths are in picture sides, x to the right and y down.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.media_types import Plane
from nemo_vfm.metrics.shape_reader import COLOURS, DIRECTIONS, SHAPES, distance

Combination = tuple[str, str, str]
_DARK, _LIGHT = (0.15, 0.33), (0.64, 0.84)  # neighbours differ by 0.3, a cut that any detector sees
_SHOT_FRAMES = (22, 26)
_NUM_FADE_FRAMES, _NUM_BLACK_FRAMES = 8, 6


def combinations(*, held_out: bool) -> list[Combination]:
    """The 16 (colour, shape, direction) that are never drawn, or the 48 that are."""
    axes = (enumerate(COLOURS), enumerate(SHAPES), enumerate(DIRECTIONS))
    return [
        (colour, shape, direction) for (i, colour), (j, shape), (k, direction) in product(*axes)
        if ((i + j + k) % 4 == 0) is held_out
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shot:
    """One uncut take."""

    colour: str  #: a name of COLOURS
    shape: str  #: a name of SHAPES
    direction: str | None  #: a name of DIRECTIONS, or None for an object that stands still
    num_frames: int  #: length
    radius: float  #: half the object's size, in sides
    lateral: float  #: where the path lies across the direction of motion, in sides
    travel: float  #: how far the object moves from first to last frame, in sides
    brightness: float  #: of the background, 0 to 1
    texture_seed: int  #: decides the tint and the texture of background and object
    num_fade_frames: int = 0  #: at the end of the shot the picture goes to black over so many frames
    num_black_frames: int = 0  #: black frames after that, counted in `num_frames`

    def caption(self) -> str:
        """What the shot shows, in the words a prompt would use."""
        motion = "standing still" if self.direction is None else f"moving {self.direction}"
        return f"a {self.colour} {self.shape} {motion}"


def films(*, seed: int, num_films: int, shots_per_film: int) -> list[list[Shot]]:
    """The shots of each film, in order: the first film ends in a fade to black, the last with a static shot."""
    random = np.random.default_rng(derive(seed, "demo films"))
    # Each drawn combination once before any comes twice.
    count = num_films * shots_per_film
    choices = combinations(held_out=False)
    rounds = [random.permutation(len(choices)) for _ in range(-(-count // len(choices)))]
    chosen = [choices[i] for i in np.concatenate(rounds)[:count]]
    shots = [
        Shot(
            colour=colour, shape=shape, direction=direction, num_frames=int(random.integers(*_SHOT_FRAMES)),
            radius=float(random.uniform(0.265, 0.275)), lateral=float(random.uniform(0.49, 0.51)),
            travel=float(random.uniform(0.385, 0.395)),
            brightness=float(random.uniform(*(_LIGHT if index % 2 else _DARK))),
            texture_seed=int(random.integers(2**31)),
        )
        for index, (colour, shape, direction) in enumerate(chosen)
    ]  # fmt: skip
    plan = [shots[start : start + shots_per_film] for start in range(0, len(shots), shots_per_film)]
    plan[0][-1] = replace(plan[0][-1], num_fade_frames=_NUM_FADE_FRAMES, num_black_frames=_NUM_BLACK_FRAMES)
    plan[-1][-1] = replace(plan[-1][-1], direction=None)
    return plan


def draw(shot: Shot, *, side_px: int) -> NDArray[np.uint8]:
    """The frames of a shot, (T, H, W, 3). Equal shots give equal bytes."""
    random = np.random.default_rng(shot.texture_seed)
    # The background: a low-saturation wash of two tints under soft clouds and a fine grain, in [0, 1].
    angle, tint_a, tint_b = random.uniform(0, 2 * np.pi), *random.uniform(-0.045, 0.045, (2, 3))
    axis = np.linspace(-0.5, 0.5, side_px, dtype=np.float32)
    ramp_HW = 0.5 + 0.7 * (axis[None, :] * np.cos(angle) + axis[:, None] * np.sin(angle))
    wash_HW3 = ramp_HW[..., None] * tint_a + (1 - ramp_HW[..., None]) * tint_b
    relief_HW = 0.10 * (ramp_HW - 0.5) + 0.05 * _clouds(random, side_px, 5) + 0.03 * _clouds(random, side_px, 16)
    grain_HW = 0.045 * _clouds(random, side_px, side_px // 2)
    background_HW3: Plane = ((shot.brightness + relief_HW + grain_HW)[..., None] + wash_HW3).astype(np.float32)
    # Soft stripes across the object: how many, at which angle, how strong.
    frequency, stripe_angle, strength = random.uniform(4, 8), random.uniform(0, np.pi), random.uniform(0.04, 0.11)
    frames = np.empty((shot.num_frames, side_px, side_px, 3), np.uint8)
    # Centre of the object in each frame, (T, 2), in sides.
    dx, dy = DIRECTIONS.get(shot.direction or "", (0, 0))
    along_T = np.linspace(-0.5, 0.5, shot.num_frames) * shot.travel
    across = shot.lateral - 0.5
    centre_T2 = 0.5 + np.stack([along_T * dx + across * abs(dy), along_T * dy + across * abs(dx)], axis=1)
    for index, (x, y) in enumerate(centre_T2):
        picture = background_HW3.copy()
        # The object and its soft shadow; only pixels around it are touched.
        reach = 1.6 * shot.radius
        left, top = (max(0, int((centre - reach) * side_px)) for centre in (x, y))
        right, bottom = (min(side_px, int((centre + reach) * side_px) + 1) for centre in (x, y))
        patch = picture[top:bottom, left:right]
        u = ((np.arange(left, right, dtype=np.float32) + 0.5) / side_px - x)[None, :] / shot.radius
        v = ((np.arange(top, bottom, dtype=np.float32) + 0.5) / side_px - y)[:, None] / shot.radius
        shadow = 0.22 * np.clip(0.5 - distance(shot.shape, u - 0.12, v - 0.18) * 3, 0, 1)
        cover = np.clip(0.5 - distance(shot.shape, u, v) * (shot.radius * side_px), 0, 1)[..., None]
        # Brightness of the object: stripes, and light from the upper left.
        stripes = np.sin(frequency * (u * np.cos(stripe_angle) + v * np.sin(stripe_angle)))
        shade: Plane = 1 + strength * stripes - 0.08 * (u + v)
        colour = np.array(COLOURS[shot.colour], np.float32) / 255 * shade[..., None]
        patch[...] = patch * (1 - shadow[..., None]) * (1 - cover) + colour * cover
        light = 1.0  # falls to 0 during a fade at the end
        if shot.num_fade_frames:
            light = float(np.clip((shot.num_frames - shot.num_black_frames - index) / shot.num_fade_frames, 0, 1))
        frames[index] = np.round(np.clip(picture * light, 0, 1) * 255)
    return frames


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
