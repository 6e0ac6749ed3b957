"""Tests that cropped, scaled, logoed and re-timed clips are found, and other things before one backdrop are not."""

import base64
import os
from fractions import Fraction
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.curate.score.local_duplicate import LocalDuplicate
from nemo_vfm.data.shards.clip_id import Clip
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.dedup.keypoints import as_bytes, describe, from_bytes, register

STAGE = LocalDuplicate()
FPS = 12.0
ABOVE = 0.6  # as in conf/rules/full.yaml


def backdrop(seed: int, height: int = 180, width: int = 320) -> np.ndarray:
    """Blobs of all sizes, as photographs have."""
    rng = np.random.default_rng(seed)
    picture = np.zeros((height, width, 3), np.float32)
    for size in (6, 12, 25, 50):
        coarse = rng.uniform(0, 255, (height // size + 2, width // size + 2, 3)).astype(np.float32)
        picture += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(picture / 4, 0, 255).astype(np.uint8)


def film(
    seed: int, colour: tuple[int, int, int] | None = None, *, back: bool = False, seconds: float = 2
) -> np.ndarray:
    """A backdrop that the camera pans over, and something large that crosses it."""
    wide = backdrop(seed, 180, 400)
    frames = []
    for number in range(round(2 * FPS)):
        frame = wide[:, 2 * number : 2 * number + 320].copy()
        place = 40 + 9 * number if not back else 280 - 9 * number
        if colour:
            cv2.circle(frame, (place, 90), 70, colour, -1)
        frames.append(frame)
    return np.stack(frames)


def crop(frames: np.ndarray, share: float, right: float, down: float) -> np.ndarray:
    """A part of every frame, as wide as the whole again."""
    height, width = frames.shape[1:3]
    y, x = int(height * (1 - share) * down), int(width * (1 - share) * right)
    part = frames[:, y : y + int(height * share), x : x + int(width * share)]
    return np.stack([cv2.resize(frame, (width, height), interpolation=cv2.INTER_CUBIC) for frame in part])


def recoded(frames: np.ndarray) -> np.ndarray:
    half = [cv2.imencode(".jpg", cv2.resize(frame, None, fx=0.5, fy=0.5), [1, 25])[1] for frame in frames]
    return np.stack([cv2.imdecode(data, 1) for data in half])


def branded(frames: np.ndarray) -> np.ndarray:
    out = frames.copy()
    out[:, 12:40, 250:310] = 255
    return out


def record(place: int, width: int = 100, seconds: float = 2.0, source: str = "") -> ClipRecord:
    clip = Clip(f"{place:064d}", 0, 24, 0, 24, Fraction(1, 12))
    return ClipRecord(clip, source or f"{place}.mp4", (Path("a"),), FPS, width, 100, round(seconds * 1e6))


def likeness(*clips: np.ndarray, fps: tuple[float, ...] = ()) -> list[float]:
    rates = fps or (FPS,) * len(clips)
    return STAGE.likeness([STAGE.remember(ClipFrames.of(clip, rate)) for clip, rate in zip(clips, rates, strict=True)])


CHANGES = {
    "cropped": lambda f: crop(f, 0.9, 0.5, 0.5), "cropped much": lambda f: crop(f, 0.6, 0.9, 0.2),
    "recoded": recoded, "with a logo": branded, "cut": lambda f: f[3:15],
    "cut and cropped": lambda f: crop(f[5:], 0.75, 0.1, 0.8),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_copy_is_found(change):
    whole = film(1)
    found = likeness(whole, change(whole), film(2))
    assert found[0] == found[1] > ABOVE and found[2] == 0


@pytest.mark.parametrize("copy, fps", [(film(1)[::2], FPS), (film(1), 0.6 * FPS), (film(1), 1.5 * FPS)])
def test_a_copy_at_another_speed_is_found(copy, fps):
    assert likeness(film(1), copy, fps=(FPS, fps))[0] > ABOVE


def test_the_same_backdrop_with_other_things_in_it_is_another_clip():
    red, blue = (220, 20, 20), (20, 20, 220)
    assert max(likeness(film(1, red), film(1, blue), film(1))) < ABOVE


def test_the_same_things_in_another_order_are_another_clip():
    assert max(likeness(film(1, (220, 20, 20)), film(1, (220, 20, 20), back=True))) < ABOVE


def test_frames_without_detail_count_for_neither_side():
    whole, plain = film(3), np.full((24, 180, 320, 3), 90, np.uint8)
    assert min(likeness(np.concatenate([whole, plain]), np.concatenate([plain, plain, whole]))) > 0.9


def test_clips_without_detail_are_like_none():
    flat = np.full((24, 64, 64, 3), 120, np.uint8)
    assert likeness(flat, flat) == [0, 0]


def test_the_largest_then_the_longest_stays():
    whole = film(1)
    clips = [record(0, 100), record(1, 200), record(2, 200, 1.0)]
    vectors = [STAGE.remember(ClipFrames.of(f, FPS)) for f in (crop(whole, 0.8, 0.5, 0.5), whole, whole[2:14])]
    assert STAGE.duplicates(clips, vectors, ABOVE) == {0: 1, 2: 1}
    of_one_file = [record(0, source="a.mp4"), record(1, source="a.mp4"), record(2, 200)]
    assert STAGE.duplicates(of_one_file, vectors, ABOVE) == {0: 2, 1: 2}
    assert STAGE.duplicates(of_one_file[:2], vectors[:2], ABOVE) == {}


def test_a_crop_says_where_it_lies():
    frame = backdrop(3)
    place = register(describe(crop(frame[None], 0.5, 0.5, 0.5)[0]), describe(frame))
    assert place is not None and place.scale == pytest.approx(0.5, abs=0.02)
    assert place.shift_x == pytest.approx(0.25 * 320 / 180, abs=0.02) and place.shift_y == pytest.approx(0.25, abs=0.02)


def test_what_is_remembered_is_read_back_and_damage_is_an_error():
    frame = describe(backdrop(4))
    data = as_bytes([frame, describe(np.zeros((40, 40, 3), np.uint8)), frame])
    found = from_bytes(data)
    assert [len(one.points_N2) for one in found] == [len(frame.points_N2), 0, len(frame.points_N2)]
    assert (
        np.array_equal(found[2].bits_NB, frame.bits_NB) and np.abs(found[0].points_N2 - frame.points_N2).max() < 0.003
    )
    with pytest.raises(ValueError, match="buffer"):
        from_bytes(data[:-5])
    assert base64.b64decode(STAGE.remember(ClipFrames.of(film(1), FPS)))


@pytest.mark.slow  # compares every shared video
@pytest.mark.skipif("NEMO_VFM_TEST_DATA" not in os.environ, reason="needs the shared videos")
def test_crops_and_speeds_of_real_films_are_found_and_no_other_pair_is_alike():
    videos = Path(os.environ["NEMO_VFM_TEST_DATA"]) / "videos"
    originals, changed, vectors = ["crush_027.mp4", "dashcam_7.mp4", "flipping_a_pancake.mkv"], {}, []
    for place, name in enumerate(originals):
        with open_video(videos / name, "pyav") as reader:
            frames = [cv2.resize(f, (341, 192), interpolation=cv2.INTER_AREA) for f in islice(reader.frames(), 60)]
            small, fps = np.stack(frames), reader.info().fps
        for clip, rate in [(small, fps), (crop(small, 0.7, 0.8, 0.3), fps), (small[10:50:2], fps)]:
            changed[len(vectors)] = place
            vectors.append(STAGE.remember(ClipFrames.of(clip, rate)))
    kept = STAGE.duplicates([record(number) for number in changed], vectors, ABOVE)
    assert {changed[a] for a in kept} == {0, 1, 2} and len(kept) == 6
    assert all(changed[a] == changed[b] for a, b in kept.items())
