"""Makes small videos with known cuts from seeds, and a curation job for them.

Shape letters: T frames, H height, W width.
"""

from pathlib import Path

import cv2
import numpy as np

from nemo_vfm.curate.caption.description import Description
from nemo_vfm.curate.caption.sidecar import Sidecar
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.curate.job import Curate
from nemo_vfm.curate.output.transcode import Transcode
from nemo_vfm.curate.score.brightness import Brightness
from nemo_vfm.curate.score.freeze import Freeze
from nemo_vfm.curate.score.motion import Motion
from nemo_vfm.curate.score.near_duplicate import NearDuplicate
from nemo_vfm.curate.score.sharpness import Sharpness
from nemo_vfm.curate.sources.video_source import Folder
from nemo_vfm.curate.split.adaptive import AdaptiveSplit
from nemo_vfm.data.video.encode import encode_mp4

FPS = 12
HEIGHT, WIDTH = 96, 128


def texture(seed: int) -> np.ndarray:
    """A picture that tiles, with a colour of its own."""
    random = np.random.default_rng(seed)
    small = random.uniform(0, 90, (HEIGHT // 8, WIDTH // 8, 3)) + random.choice([20, 90, 165], 3)
    return cv2.resize(np.clip(small, 0, 255).astype(np.uint8), (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)


def pan(seed: int, num_frames: int = 24, step_px: int = 2) -> np.ndarray:
    """A textured picture that moves to the right, (T, H, W, 3)."""
    picture = texture(seed)
    return np.stack([np.roll(picture, step_px * index, axis=1) for index in range(num_frames)])


def blurred(seed: int, num_frames: int = 24) -> np.ndarray:
    return np.stack([cv2.GaussianBlur(frame, (0, 0), 9) for frame in pan(seed, num_frames, 3)])


def black(num_frames: int = 24) -> np.ndarray:
    return np.zeros((num_frames, HEIGHT, WIDTH, 3), np.uint8)


def disc_that_moves() -> np.ndarray:
    """A small pale disc that crosses a grey field."""
    frames = np.full((24, HEIGHT, WIDTH, 3), 200, np.uint8)
    for index, frame in enumerate(frames):
        cv2.circle(frame, (20 + 3 * index, 50), 9, (215, 215, 190), -1)
    return frames


def fade_through_black(a: np.ndarray, b: np.ndarray, num_frames: int = 10) -> np.ndarray:
    """`a` gets dark over its last frames, `b` comes up over its first."""
    down = np.ones(len(a))
    down[-num_frames:] = np.linspace(1, 0, num_frames)
    up = np.ones(len(b))
    up[:num_frames] = np.linspace(0, 1, num_frames)
    levels = np.concatenate([down, up])[:, None, None, None]
    return (np.concatenate([a, b]) * levels).astype(np.uint8)


def write_film(path: Path, *shots: np.ndarray, crf: int = 12) -> Path:
    encode_mp4(path, np.concatenate(shots), FPS, crf=crf, preset="veryfast")
    return path


def job(folder: Path, **changes: object) -> Curate:
    """A curation of all stages and rules, with some arguments changed."""
    arguments: dict[str, object] = {
        "source": Folder(path=folder),
        "split": AdaptiveSplit(),
        "stages": {
            "motion": Motion(), "sharpness": Sharpness(), "brightness": Brightness(), "freeze": Freeze(),
            "near_duplicate": NearDuplicate(),
        },
        "rules": {
            "too_short": Rule(score="duration_s", below=1.0), "black": Rule(score="black_ratio", above=0.5),
            "static": Rule(score="motion_peak", below=1.0), "blurred": Rule(score="sharpness", below=5.0),
            "near_duplicate": Rule(score="similarity", above=0.9),
        },
        "captions": {"sidecar": Sidecar(), "description": Description()},
        "transcode": Transcode(preset="veryfast"),
    }  # fmt: skip
    return Curate(**(arguments | changes))
