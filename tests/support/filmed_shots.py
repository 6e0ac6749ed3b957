"""Builds videos of real footage with known transitions, from the videos of NEMO_VFM_TEST_DATA.

Of ten events five are hard cuts; the others are a fade through black, a dissolve, a wipe, a flash and a whip pan.
Neighbouring shots are of different recordings. A shot is cropped, mirrored and lit at random.
"""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import cv2
import numpy as np

from nemo_vfm.curate.examine.frame_stream import Walk
from tests.support.shot_films import HEIGHT, WIDTH, Film, Kind, film

DATA = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent")) / "videos"
#: Stretches of one shot each: video, first and last second.
_SHOTS = (
    ("crush_027.mp4", 0.0, 7.0), ("dashcam_6.mp4", 0.0, 2.0), ("flipping_a_pancake.mkv", 0.0, 10.0),
    ("sintel_trailer_30s.mp4", 17.1, 18.7), ("sintel_trailer_30s.mp4", 20.4, 21.6),
    ("sintel_trailer_30s.mp4", 21.9, 23.7), ("sintel_trailer_30s.mp4", 23.95, 25.3),
)  # fmt: skip
_KINDS: tuple[Kind, ...] = ("cut",) * 5 + ("black", "dissolve", "wipe", "flash", "whip")


@cache
def _footage(number: int) -> tuple[np.ndarray, ...]:
    """The frames of a stretch, a little larger than those of the films."""
    name, first_s, stop_s = _SHOTS[number]
    with Walk(DATA / name, side_px=120) as walk:
        frames = list(
            walk.frames(round(stop_s * walk.info.fps) if stop_s * walk.info.fps < walk.info.num_frames else None)
        )
        first = round(first_s * walk.info.fps)
    return tuple(cv2.resize(frame, (214, 120), interpolation=cv2.INTER_AREA) for frame in frames[first:])


class FilmedShot:
    """A part of a recording, played to and fro."""

    def __init__(self, random: np.random.Generator, number: int) -> None:
        self._frames = _footage(number)
        self._first = int(random.integers(len(self._frames)))
        self._x, self._y = int(random.integers(214 - WIDTH)), int(random.integers(120 - HEIGHT))
        self._mirrored, self._gain = random.random() < 0.5, random.uniform(0.8, 1.2)
        self.whip: tuple[int, int, float] | None = None  # first frame, last, pixels a frame

    def frame(self, number: int) -> np.ndarray:
        """float32, 0 to 255."""
        around = (self._first + number) % (2 * len(self._frames))
        whole = self._frames[min(around, 2 * len(self._frames) - 1 - around)]
        view = whole[self._y : self._y + HEIGHT, self._x : self._x + WIDTH]
        view = view[:, ::-1] if self._mirrored else view
        if self.whip is not None:
            turned = self.whip[2] * min(max(number - self.whip[0], 0), self.whip[1] - self.whip[0])
            endless = np.hstack([view, view[:, ::-1]])  # the picture goes on as its mirror image
            view = np.roll(endless, round(turned), axis=1)[:, :WIDTH]
        return np.minimum(view.astype(np.float32) * self._gain, 255)


def shots(random: np.random.Generator) -> Callable[[], FilmedShot]:
    """Gives one shot after another; none of the recording before."""
    last = ""

    def following() -> FilmedShot:
        nonlocal last
        numbers = [number for number, (name, *_) in enumerate(_SHOTS) if name != last or number > 2]
        if last.startswith("sintel"):
            numbers = [number for number in numbers if number <= 2]
        number = int(random.choice(numbers))
        last = _SHOTS[number][0]
        return FilmedShot(random, number)

    return following


def filmed_corpus(seed: int, num_films: int = 24) -> Iterator[Film]:
    """Videos with the same shares of events, shuffled."""
    random = np.random.default_rng(seed)
    for number in range(num_films):
        kinds = [_KINDS[place] for place in random.permutation(len(_KINDS))]
        yield film(1000 * seed + number, kinds, shots)
