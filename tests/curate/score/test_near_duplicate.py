"""Tests that copies are found among generated videos and the pieces of a real trailer."""

import os
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.curate.score.near_duplicate import NearDuplicate
from nemo_vfm.data.shards.clip_id import Clip
from nemo_vfm.data.video.decode import open_video
from tests.support.films import FPS, blurred, pan

STAGE = NearDuplicate()
DATA = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent"), "videos")
# Where the trailer of 30 s changes picture (frames 372 to 388 and 462 to 478 are black); the 10 s begin at frame 72.
SHOTS = (0, 172, 251, 286, 348, 372, 388, 462, 478, 523, 573, 610, 624, 720)


def remember(frames: np.ndarray, fps: float = FPS) -> str:
    return STAGE.remember(ClipFrames.of(frames, fps))


def record(index: int, *, size: int = 64, seconds: float = 2.0, **scores: float | str) -> ClipRecord:
    clip = Clip(f"{index:064d}", 0, 24, 0, 24, Fraction(1, 12))
    return ClipRecord(clip, "x.mp4", (Path("x"),), 12.0, size, size, round(seconds * 1e6), scores=dict(scores))


def small(path: Path) -> tuple[np.ndarray, float]:
    with open_video(path, "pyav") as reader:
        frames = [cv2.resize(frame, (228, 128), interpolation=cv2.INTER_AREA) for frame in reader.frames()]
        return np.stack(frames), reader.info().fps


@pytest.fixture(scope="module")
def trailer() -> tuple[np.ndarray, float]:
    if not DATA.is_dir():
        pytest.skip("NEMO_VFM_TEST_DATA is not set")
    return small(DATA / "sintel_trailer_30s.mp4")


def test_generated_films_are_not_like_each_other():
    assert max(STAGE.likeness([remember(pan(seed)) for seed in range(40)])) < 0.7


def test_a_piece_of_a_film_is_found_at_another_size_and_rate():
    film = pan(3, 60, step_px=1)
    piece = np.stack([cv2.resize(frame, (64, 48), interpolation=cv2.INTER_AREA) for frame in film[7:43:2]])
    assert STAGE.likeness([remember(film), remember(piece, FPS / 2), remember(pan(4))])[:2] == pytest.approx(
        [0.97] * 2, abs=0.05
    )


def test_equal_frames_are_copies_even_where_there_is_nothing_to_see():
    black, dark = np.zeros((24, 48, 64, 3), np.uint8), np.full((24, 48, 64, 3), 9, np.uint8)
    assert STAGE.likeness([remember(black), remember(black), remember(dark)]) == [1.0, 1.0, 0.0]


def test_the_largest_then_the_longest_then_the_best_stays():
    same = [remember(pan(1))] * 2
    judged = lambda a, b: STAGE.duplicates([a, b], same, 0.9)  # noqa: E731
    assert judged(record(0, size=64, seconds=1), record(1, size=32, seconds=9)) == {1: 0}
    assert judged(record(0, seconds=9, sharpness=1.0), record(1, seconds=1, sharpness=9.0)) == {1: 0}
    assert judged(record(0, sharpness=1.0), record(1, sharpness=9.0)) == {0: 1}


def test_two_pieces_of_a_film_that_does_not_stay_both_stay():
    film = pan(5, 96, step_px=1)
    texts = [remember(film), remember(film[:36]), remember(film[60:])]
    assert STAGE.duplicates([record(0), record(1, size=128), record(2, size=32)], texts, 0.9) == {0: 1}
    assert STAGE.duplicates([record(0), record(1), record(2)], texts, 0.9) == {1: 0, 2: 0}


def test_a_blurred_copy_is_less_alike_than_a_copy():
    assert STAGE.likeness([remember(pan(2)), remember(blurred(2))])[0] < 0.9


@pytest.mark.slow
def test_ten_seconds_of_the_trailer_are_found_inside_thirty(trailer: tuple[np.ndarray, float]):
    piece, fps = small(DATA / "sintel_trailer_10s.mp4")
    whole = [remember(trailer[0], fps), remember(piece, fps)]
    assert min(STAGE.likeness(whole)) > 0.9
    shots = [remember(trailer[0][:172], fps), remember(piece[:100], fps)]  # its first shot, begun 72 frames later
    assert min(STAGE.likeness(shots)) > 0.9


@pytest.mark.parametrize("first, last", [(77, 160), (395, 450), (524, 570), (580, 609)])
@pytest.mark.slow
def test_a_piece_cut_at_any_frame_is_found(trailer: tuple[np.ndarray, float], first: int, last: int):
    frames, fps = trailer
    assert min(STAGE.likeness([remember(frames, fps), remember(frames[first:last], fps)])) > 0.85


@pytest.mark.slow  # compares every shared video
def test_no_other_pair_among_the_shared_films_and_generated_ones_is_alike(trailer: tuple[np.ndarray, float]):
    frames, fps = trailer
    texts = [remember(frames[a:b], fps) for a, b in pairwise(SHOTS)]
    others = ("crush_027.mp4", "dashcam_6.mp4", "flipping_a_pancake.mkv", "video_0.mov", "video_90.mov")
    texts += [remember(*small(DATA / name)) for name in others]
    texts += [remember(pan(seed)) for seed in range(20)]
    assert max(STAGE.likeness(texts)) < 0.75
