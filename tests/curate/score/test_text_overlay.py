"""Tests text overlays on videos with subtitles, titles, logos or signs, and on real videos with and without text."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.score.text_overlay import TextOverlay, overlap
from tests.support.filmed import filmed
from tests.support.onnx_file import bright_smears

DATA = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent")) / "videos"
HEIGHT, WIDTH, FPS = 256, 448, 12.0


def scene(seed=0):
    """A wide picture with soft shapes and hard edges."""
    random = np.random.default_rng(seed)
    small = random.uniform(30, 220, (HEIGHT // 16, 2 * WIDTH // 16, 3)).astype(np.uint8)
    picture = cv2.resize(small, (2 * WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    for _ in range(60):
        x, y = random.integers(0, 2 * WIDTH), random.integers(0, HEIGHT)
        colour = random.integers(0, 255, 3).tolist()
        cv2.rectangle(picture, (x, y), (x + int(random.integers(5, 60)), y + int(random.integers(5, 60))), colour, -1)
    return picture


def panned(picture, step_px=6, num_frames=30):
    return np.stack([np.roll(picture, -step_px * k, axis=1)[:, :WIDTH] for k in range(num_frames)])


def write(picture, text, at, scale=0.6):
    """White letters with a black rim, in place."""
    for colour, thick in (((0, 0, 0), 4), ((255, 255, 255), 1)):
        cv2.putText(picture, text, at, cv2.FONT_HERSHEY_SIMPLEX, scale, colour, thick, cv2.LINE_AA)
    return picture


def overlaid(frames, text, at, scale=0.6):
    return np.stack([write(frame.copy(), text, at, scale) for frame in frames])


def measured(frames, **arguments):
    return TextOverlay(**arguments).measure(ClipFrames.of(np.ascontiguousarray(frames), FPS))


@pytest.mark.parametrize("seed", range(4))
def test_subtitles_over_a_moving_picture_are_seen_in_its_lower_third(seed):
    film = panned(scene(seed))
    plain, subtitled = measured(film), measured(overlaid(film, "I came for the cheese", (90, 230)))
    assert (plain["text.overlay"], subtitled["text.overlay"]) == (0, 1)
    assert subtitled["text.bottom"] > subtitled["text.area"] > plain["text.area"]


def test_a_logo_is_seen_in_its_corner():
    film = panned(scene(1))
    scores = measured(overlaid(film, "CHANNEL 4", (6, 20), 0.4))
    assert scores["text.overlay"] == 1 and scores["text.corner"] > 0.05 > scores["text.bottom"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("step_px", [3, 6])
def test_signs_painted_into_a_panning_scene_are_not_overlays(seed, step_px):
    picture = scene(seed)
    for x in range(0, 2 * WIDTH, 220):
        write(picture, "BAKERY OPEN TODAY", (x, 130))
    assert measured(panned(picture, step_px))["text.overlay"] == 0


def test_a_sign_before_a_still_camera_is_no_overlay():
    still = np.stack([write(scene(2), "BAKERY OPEN TODAY", (90, 130))[:, :WIDTH]] * 30)
    assert measured(still)["text.overlay"] == 0


def test_a_title_on_black_that_fades_out_is_seen():
    title = write(np.zeros((HEIGHT, WIDTH, 3), np.uint8), "THE END OF THE FILM", (90, 130))
    assert measured([(title * (1 - k / 40)).astype(np.uint8) for k in range(30)])["text.overlay"] == 1


@pytest.mark.slow
def test_a_detector_from_a_file_finds_the_same_subtitles(tmp_path):
    weights = bright_smears(tmp_path / "detector.onnx")
    dark = panned(scene(3) // 4, num_frames=12)
    plain, subtitled = (
        measured(film, weights=weights) for film in (dark, overlaid(dark, "I came for cheese", (60, 230), 1.2))
    )
    assert (plain["text.overlay"], subtitled["text.overlay"]) == (0, 1)
    assert subtitled["text.bottom"] > 0.02 and plain["text.area"] == 0


def test_writing_that_a_detector_finds_at_another_place_in_each_frame_is_no_overlay(tmp_path):
    weights = bright_smears(tmp_path / "detector.onnx")
    sign = write(scene(3) // 4, "I came for cheese", (60, 230), 1.2)
    assert measured(panned(sign, step_px=12, num_frames=12), weights=weights)["text.overlay"] == 0


def test_a_file_that_is_no_detector_is_refused_in_words(tmp_path):
    with pytest.raises(UserError, match="there is no text detector at"):
        measured(panned(scene()), weights=tmp_path / "absent.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(UserError, match="cannot be run"):
        measured(panned(scene()), weights=tmp_path / "bad.onnx")


def test_other_weights_have_another_fingerprint_wherever_they_lie(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    one, same = bright_smears(tmp_path / "a.onnx"), bright_smears(tmp_path / "elsewhere" / "b.onnx")
    prints = [TextOverlay(weights=path).fingerprint() for path in (None, one, same)]
    assert prints[0] != prints[1] == prints[2] != TextOverlay(weights=one, strokes=9.0).fingerprint()


def test_boxes_overlap_by_what_they_share():
    assert overlap((0, 0, 10, 10), (0, 0, 10, 10)) == 1
    assert overlap((0, 0, 10, 10), (5, 0, 15, 10)) == pytest.approx(1 / 3)
    assert overlap((0, 0, 10, 10), (10, 0, 20, 10)) == 0


@pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
@pytest.mark.parametrize(
    ("name", "expected"),
    [("sintel_trailer_10s.mp4", 1), ("crush_027.mp4", 0), ("dashcam_6.mp4", 0), ("dashcam_7.mp4", 0),
     ("flipping_a_pancake.mkv", 0)],
)  # fmt: skip
@pytest.mark.slow
def test_of_real_videos_only_the_one_with_a_title_has_an_overlay(name, expected):
    assert TextOverlay().measure(filmed(DATA / name))["text.overlay"] == expected
