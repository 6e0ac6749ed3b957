"""Makes videos with hard cuts, fades, dissolves, flashes and fast pans, and lists where each is.

Of all events 60 % are hard cuts, a tenth of them with a flash on it; 20 % are gradual (half fades through black, half
dissolves) and 20 % should not be cut at (half flashes, half whip pans). Shots move: the camera drifts, fast in some,
something crosses the picture, and a third of neighbours have the same colours. Shape letters: H height, W width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import cv2
import numpy as np

FPS = 24.0
HEIGHT, WIDTH = 90, 160
_MARGIN = 3  # the picture that a shot looks at is so many times larger

Kind = Literal["cut", "black", "dissolve", "wipe", "flash", "whip", "hole", "resize"]
DIRECTIONS = ("right", "down", "diagonal", "iris")  # of wipes


@dataclass(frozen=True)
class Event:
    """What happens, from its first frame to its last (exclusive); a hard cut has length 0 at the new shot's first."""

    kind: Kind
    start: int
    stop: int


@dataclass(frozen=True)
class Film:
    """Frames as a splitter gets them, and what is in them."""

    frames: tuple[np.ndarray, ...]
    events: tuple[Event, ...]


class Filmed(Protocol):
    """What a shot can be asked for."""

    whip: tuple[int, int, float] | None  # first frame, last, pixels a frame

    def frame(self, number: int) -> np.ndarray:
        """float32, 0 to 255."""
        ...


class Shot:
    """A big picture, a camera over it, and a thing that crosses; any frame can be asked for."""

    def __init__(self, random: np.random.Generator, palette: np.ndarray) -> None:
        self._picture = _picture(random, palette)
        room = (_MARGIN - 1) * np.array([WIDTH, HEIGHT])
        self._at = random.uniform(0.2, 0.8, 2) * room
        speed = random.choice([0.0, 0.3, 1.0, 2.5], p=[0.3, 0.3, 0.3, 0.1])
        turn = random.uniform(0, 2 * np.pi)
        self._speed = speed * np.array([np.cos(turn), 0.4 * np.sin(turn)])
        self._colour = random.integers(0, 256, 3).tolist()
        self._thing = random.uniform(0, 1, 4)
        self._noise = random.normal(0, random.uniform(0.5, 3), (HEIGHT + 32, WIDTH + 32, 3)).astype(np.float32)
        self.whip: tuple[int, int, float] | None = None  # first frame, last, pixels a frame

    def frame(self, number: int) -> np.ndarray:
        """float32, 0 to 255."""
        x, y = self._at + self._speed * number
        if self.whip is not None:
            x += self.whip[2] * min(max(number - self.whip[0], 0), self.whip[1] - self.whip[0])
        height, width = self._picture.shape[:2]
        shift = np.float32([[1, 0, -(x % width)], [0, 1, -(y % height)]])
        view = cv2.warpAffine(self._picture, shift, (WIDTH, HEIGHT), borderMode=cv2.BORDER_WRAP)
        if self._thing[0] < 0.6:
            centre = (int((self._thing[1] + number * 0.01) % 1 * WIDTH), int(self._thing[2] * HEIGHT))
            cv2.circle(view, centre, int(5 + 15 * self._thing[3]), self._colour, -1)
        dx, dy = number * 7 % 32, number * 13 % 32
        return view.astype(np.float32) + self._noise[dy : dy + HEIGHT, dx : dx + WIDTH]


def _picture(random: np.random.Generator, palette: np.ndarray) -> np.ndarray:
    """Soft clouds between two colours, with shapes on them."""
    height, width = _MARGIN * HEIGHT, _MARGIN * WIDTH
    clouds = np.zeros((height, width), np.float32)
    for cells in (3, 9, 27):
        coarse = random.normal(0, 1 / cells**0.7, (cells, 2 * cells)).astype(np.float32)
        clouds += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    share = np.clip((clouds - clouds.min()) / np.ptp(clouds), 0, 1)[..., None]
    picture = palette[0] * (1 - share) + palette[1] * share
    for _ in range(random.integers(5, 25)):
        colour = np.clip(palette[random.integers(2)] + random.normal(0, 40, 3), 0, 255).tolist()
        at = (int(random.integers(width)), int(random.integers(height)))
        size = (int(random.integers(8, 80)), int(random.integers(8, 60)))
        cv2.ellipse(picture, at, size, float(random.uniform(0, 180)), 0, 360, colour, -1)
    return picture.astype(np.float32)


def drawn(random: np.random.Generator) -> Callable[[], Shot]:
    """Gives one drawn shot after another; a third have the colours of the one before."""
    palette: np.ndarray | None = None

    def following() -> Shot:
        nonlocal palette
        if palette is None or random.random() >= 0.33:
            palette = random.uniform(15, 240, (2, 3))
        return Shot(random, palette)

    return following


def film(
    seed: int, kinds: Sequence[Kind], shots: Callable[[np.random.Generator], Callable[[], Filmed]] = drawn
) -> Film:
    """A film in which these things happen, in this order."""
    random = np.random.default_rng(seed)
    next_shot = shots(random)
    shot, born = next_shot(), 0
    frames: list[np.ndarray] = []
    events: list[Event] = []
    for kind in kinds:
        _run(frames, shot, born, int(random.integers(22, 60)))
        start = len(frames)
        if kind == "whip":
            length = int(random.integers(5, 12))
            shot.whip = (start - born, start - born + length, float(random.uniform(12, 35) * random.choice([-1, 1])))
            _run(frames, shot, born, length)
        elif kind == "flash":
            frames += _flash(random, shot, start - born)
        else:
            following = next_shot()
            frames += _change(random, kind, shot, following, start - born)
            shot, born = following, start
        events.append(Event(kind, start, start if kind == "cut" else len(frames)))
    _run(frames, shot, born, int(random.integers(22, 60)))
    return Film(tuple(np.clip(frame, 0, 255).astype(np.uint8) for frame in frames), tuple(events))


def _run(frames: list[np.ndarray], shot: Filmed, born: int, length: int) -> None:
    frames += [shot.frame(len(frames) - born + index) for index in range(length)]


def _flash(random: np.random.Generator, shot: Filmed, first: int) -> Iterator[np.ndarray]:
    """One to three bright frames that may fade over a few more."""
    peak, held, fading = random.uniform(90, 200), int(random.integers(1, 4)), int(random.integers(0, 5))
    strengths = [peak] * held + [peak * (1 - (index + 1) / (fading + 1)) for index in range(fading)]
    return (shot.frame(first + index) + strength for index, strength in enumerate(strengths))


def _change(random: np.random.Generator, kind: Kind, a: Filmed, b: Filmed, first: int) -> Iterator[np.ndarray]:
    """The frames of one shot's passing into another."""
    if kind == "cut":
        if random.random() < 0.1:
            yield from _flash(random, b, 0)
        return
    half = int(random.integers(4, 20))
    dark = int(random.integers(1, 10)) if kind == "black" else 0
    order = wipe_order(random) if kind == "wipe" else None
    for index in range(2 * half + dark):
        old, new = a.frame(first + index), b.frame(index)
        part = (index + 1) / (2 * half + 1)
        if kind == "dissolve":
            yield (1 - part) * old + part * new
        elif order is not None:
            yield np.where(order < part, new, old)
        elif index < half:
            yield (1 - (index + 1) / (half + 1)) * old
        else:
            yield max(0.0, (index - half - dark + 1) / (half + 1)) * new


def wipe_order(random: np.random.Generator) -> np.ndarray:
    """When each pixel changes, 0 to 1; one of four directions, either way round."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    ways = {"right": x, "down": y, "diagonal": x / WIDTH + y / HEIGHT, "iris": np.hypot(x - WIDTH / 2, y - HEIGHT / 2)}
    order = ways[DIRECTIONS[random.integers(len(DIRECTIONS))]]
    order = order / order.max()
    return (order if random.random() < 0.5 else 1 - order)[..., None]


def corpus(seed: int, num_films: int, events_per_film: int = 10) -> Iterator[Film]:
    """Films with the same shares of events, shuffled."""
    kinds: tuple[Kind, ...] = ("cut",) * 6 + ("black", "dissolve", "flash", "whip")
    random = np.random.default_rng(seed)
    for number in range(num_films):
        chosen = [kinds[place % len(kinds)] for place in random.permutation(events_per_film)]
        yield film(1000 * seed + number, chosen)
