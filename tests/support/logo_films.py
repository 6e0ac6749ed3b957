"""Builds films of different shots of real footage, and seven corner logos to lay over them.

The footage is that of NEMO_VFM_TEST_DATA; shots are cropped, mirrored and lit at random. Shape letters: T frames,
H height, W width, C colours (RGB).
"""

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from nemo_vfm.curate.examine.frame_stream import Walk

DATA = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent")) / "videos"
HEIGHT, WIDTH = 256, 448
_ROOM = 290, 510  # height and width of the footage that a shot is cropped from
#: One scene each: video, first and last second.
SCENES = (
    ("crush_027.mp4", 0.0, 7.0), ("dashcam_6.mp4", 0.0, 2.0), ("dashcam_7.mp4", 0.0, 2.0),
    ("flipping_a_pancake.mkv", 0.0, 10.0), ("video_0.mov", 0.0, 0.1), ("sintel_trailer_30s.mp4", 1.3, 2.8),
    ("sintel_trailer_30s.mp4", 4.2, 6.2), ("sintel_trailer_30s.mp4", 10.6, 11.9),
    ("sintel_trailer_30s.mp4", 12.2, 13.2), ("sintel_trailer_30s.mp4", 17.1, 18.7),
    ("sintel_trailer_30s.mp4", 20.4, 21.6), ("sintel_trailer_30s.mp4", 21.9, 23.7),
    ("sintel_trailer_30s.mp4", 23.95, 25.3), ("sintel_trailer_30s.mp4", 26.1, 27.1),
)  # fmt: skip


class Mark(NamedTuple):
    """Something to lay over a picture: opacity 0 to 1, (H, W, 1), and colours, (H, W, C)."""

    alpha: np.ndarray
    colours: np.ndarray

    def over(self, frames_THWC: np.ndarray) -> np.ndarray:
        rows, columns = (np.flatnonzero(self.alpha.any(axis=axis)) for axis in ((1, 2), (0, 2)))
        box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        alpha, marked_THWC = self.alpha[box], frames_THWC.copy()
        mixed = frames_THWC[:, *box] * (1 - alpha) + self.colours[box] * alpha
        marked_THWC[:, *box] = np.clip(mixed, 0, 255).round()
        return marked_THWC


@cache
def _footage(number: int) -> tuple[np.ndarray, ...]:
    """The frames of a scene, a little larger than those of the films; the trailer without its bars."""
    name, first_s, stop_s = SCENES[number]
    with Walk(DATA / name, side_px=480) as walk:
        frames = list(walk.frames(min(walk.info.num_frames, round(stop_s * walk.info.fps))))
        first = round(first_s * walk.info.fps)
    inside = slice(60, 420) if name.startswith("sintel") else slice(None)
    return tuple(_large(frame[inside]) for frame in frames[first:])


def _large(frame: np.ndarray) -> np.ndarray:
    ratio = max(_ROOM[0] / frame.shape[0], _ROOM[1] / frame.shape[1])
    size = round(frame.shape[1] * ratio), round(frame.shape[0] * ratio)
    return cv2.resize(frame, size, interpolation=cv2.INTER_AREA)


def shot(random: np.random.Generator, scene: int, num_frames: int = 8) -> np.ndarray:
    """A part of a scene, cropped, mirrored and lit at random, (T, H, W, C)."""
    frames = _footage(scene)
    y, x = (int(random.integers(room)) for room in (frames[0].shape[0] - HEIGHT + 1, frames[0].shape[1] - WIDTH + 1))
    first = int(random.integers(max(1, len(frames) - num_frames)))
    numbers = np.minimum(first + np.arange(num_frames), len(frames) - 1)
    view = np.stack([frames[number][y : y + HEIGHT, x : x + WIDTH] for number in numbers])
    view = view[:, :, ::-1] if random.random() < 0.5 else view
    return np.clip(view * random.uniform(0.8, 1.2), 0, 255).astype(np.uint8)


def film(seed: int, num_shots: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [shot(random, int(scene)) for scene in random.permutation(len(SCENES))[:num_shots]]


def still_camera(seed: int, scene: int, num_shots: int = 3) -> list[np.ndarray]:
    """Shots that a camera took without being moved, some time apart; only the light differs."""
    frames, random = _footage(scene), np.random.default_rng(seed)
    length = len(frames) // num_shots
    shots = [np.stack(frames[part * length : (part + 1) * length]) for part in range(num_shots)]
    return [np.clip(one[:, :HEIGHT, :WIDTH] * random.uniform(0.85, 1.15), 0, 255).astype(np.uint8) for one in shots]


def logos() -> dict[str, Mark]:
    """Opaque, half transparent and written ones, each in a corner."""
    return {
        "bold letters": _written("TV9", (WIDTH - 50, 28), 0.6, thick=2, rim=1.0),
        "faint letters": _written("ARTE", (12, 28), 0.5, alpha=0.5),
        "rimmed letters": _written("news 24", (WIDTH - 80, HEIGHT - 14), 0.45, alpha=0.8, rim=0.5),
        "opaque disc": _disc((30, HEIGHT - 30), "3"),
        "faint ring": _ring((WIDTH - 28, 28)),
        "faint badge": _badge(),
        "star": _star((WIDTH - 30, HEIGHT - 28)),
    }


def _canvas() -> np.ndarray:
    return np.zeros((HEIGHT, WIDTH), np.uint8)


def _mark(alpha_HW: np.ndarray, colours_HWC: np.ndarray | None = None) -> Mark:
    white = np.full((HEIGHT, WIDTH, 3), 255.0)
    return Mark(alpha_HW[..., None], white if colours_HWC is None else colours_HWC)


def _written(
    text: str, at: tuple[int, int], scale: float, alpha: float = 1.0, thick: int = 1, rim: float = 0.0
) -> Mark:
    """White letters, with a black rim of another opacity."""
    inner, outer = (
        cv2.putText(_canvas(), text, at, cv2.FONT_HERSHEY_SIMPLEX, scale, 255, width, cv2.LINE_AA) / 255
        for width in (thick, thick + 3)
    )
    whole = rim * outer * (1 - inner) + alpha * inner
    white = alpha * inner / np.maximum(whole, 1e-3)
    return _mark(whole, np.repeat(255 * np.minimum(white, 1)[..., None], 3, axis=2))


def _disc(at: tuple[int, int], text: str) -> Mark:
    colours = np.full((HEIGHT, WIDTH, 3), (200, 20, 30), np.uint8)
    cv2.putText(colours, text, (at[0] - 7, at[1] + 5), cv2.FONT_HERSHEY_SIMPLEX, 0.7, (255, 255, 255), 2, cv2.LINE_AA)
    return _mark(cv2.circle(_canvas(), at, 15, 255, -1, cv2.LINE_AA) / 255, colours)


def _ring(at: tuple[int, int]) -> Mark:
    return _mark(cv2.circle(_canvas(), at, 12, 255, 3, cv2.LINE_AA) / 255 * 0.45)


def _badge() -> Mark:
    colours = np.full((HEIGHT, WIDTH, 3), (20, 60, 160), np.uint8)
    cv2.rectangle(colours, (18, 20), (30, 30), (255, 255, 255), -1)
    cv2.circle(colours, (40, 25), 6, (255, 220, 0), -1)
    return _mark(cv2.rectangle(_canvas(), (12, 14), (51, 35), 255, -1) / 255 * 0.5, colours)


def _star(at: tuple[int, int]) -> Mark:
    turns, radii = np.arange(10) * np.pi / 5, np.array([14, 6] * 5)
    points = np.stack([np.cos(turns) * radii, np.sin(turns) * radii], axis=1) + at
    return _mark(cv2.polylines(_canvas(), [points.round().astype(int)], True, 255, 2, cv2.LINE_AA) / 255 * 0.7)
