"""Plans the shots of every demo video, and which combinations of colour, shape and direction no video shows.

Of the 64 combinations 16 are held out, so that a sample of one cannot be copied from training. They form a Latin
square: every colour with every shape, every colour with every direction and every shape with every direction is held
out once and shown three times.
"""

from dataclasses import replace
from itertools import product

import numpy as np

from nemo_vfm.core.seed import derive
from nemo_vfm.metrics.shape_reader import COLOURS, DIRECTIONS, SHAPES
from nemo_vfm.synth.draw_shot import Shot

Combination = tuple[str, str, str]
_DARK, _LIGHT = (0.15, 0.33), (0.64, 0.84)  # neighbours differ by 0.3, a cut that any detector sees
_SHOT_FRAMES = (22, 26)
_NUM_FADE_FRAMES, _NUM_BLACK_FRAMES = 8, 6


def held_out() -> list[Combination]:
    """The 16 (colour, shape, direction) that are never drawn."""
    return [combination for index, combination in _all() if sum(index) % 4 == 0]


def trained() -> list[Combination]:
    """The 48 (colour, shape, direction) that are drawn."""
    return [combination for index, combination in _all() if sum(index) % 4 != 0]


def _all() -> list[tuple[tuple[int, int, int], Combination]]:
    """Every combination with its indices."""
    axes = [list(enumerate(names)) for names in (COLOURS, SHAPES, DIRECTIONS)]
    return [((i, j, k), (colour, shape, direction)) for (i, colour), (j, shape), (k, direction) in product(*axes)]


def films(*, seed: int, num_films: int, shots_per_film: int) -> list[list[Shot]]:
    """The shots of each film, in order: the first film ends in a fade to black, the last with a static shot."""
    random = np.random.default_rng(derive(seed, "demo films"))
    combinations = _shuffled_rounds(random, num_films * shots_per_film)
    shots = [_shot(random, combination, index % 2 == 1) for index, combination in enumerate(combinations)]
    plan = [shots[start : start + shots_per_film] for start in range(0, len(shots), shots_per_film)]
    plan[0][-1] = _faded(plan[0][-1])
    plan[-1][-1] = _still(plan[-1][-1])
    return plan


def _shuffled_rounds(random: np.random.Generator, count: int) -> list[Combination]:
    """Each drawn combination once before any comes twice."""
    choices = trained()
    rounds = [random.permutation(len(choices)) for _ in range(-(-count // len(choices)))]
    return [choices[i] for i in np.concatenate(rounds)[:count]]


def _shot(random: np.random.Generator, combination: Combination, light: bool) -> Shot:
    colour, shape, direction = combination
    return Shot(
        colour=colour,
        shape=shape,
        direction=direction,
        num_frames=int(random.integers(*_SHOT_FRAMES)),
        radius=float(random.uniform(0.265, 0.275)),
        lateral=float(random.uniform(0.49, 0.51)),
        travel=float(random.uniform(0.385, 0.395)),
        brightness=float(random.uniform(*(_LIGHT if light else _DARK))),
        texture_seed=int(random.integers(2**31)),
    )


def _faded(shot: Shot) -> Shot:
    return replace(shot, num_fade_frames=_NUM_FADE_FRAMES, num_black_frames=_NUM_BLACK_FRAMES)


def _still(shot: Shot) -> Shot:
    return replace(shot, direction=None)
