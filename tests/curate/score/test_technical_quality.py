"""Tests that pictures with a known fault get the number that says which and how much."""

import cv2
import numpy as np
import pytest

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.score.technical_quality import TechnicalQuality, blockiness

HEIGHT, WIDTH = 192, 320


def scene(seed=0, height=HEIGHT, width=WIDTH):
    """Soft shapes with some hard edges."""
    random = np.random.default_rng(seed)
    small = random.uniform(40, 200, (height // 24, width // 24, 3)).astype(np.uint8)
    made = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)
    for _ in range(25):
        centre = int(random.integers(0, width)), int(random.integers(0, height))
        cv2.circle(made, centre, int(random.integers(4, 40)), random.integers(30, 220, 3).tolist(), -1, cv2.LINE_AA)
    return made


def measured(frames, fps=24.0):
    return TechnicalQuality().measure(ClipFrames.of(np.ascontiguousarray(frames), fps))


def flat(*colours):
    return np.stack([np.full((HEIGHT, WIDTH, 3), colour, np.uint8) for colour in colours])


@pytest.mark.parametrize("sigma", [2.0, 5.0, 12.0])
@pytest.mark.parametrize("ground", ["flat", "gradient"])
def test_the_noise_that_was_added_is_found_again_within_a_tenth(sigma, ground):
    random = np.random.default_rng(1)
    clean = np.full((HEIGHT, WIDTH), 120.0) if ground == "flat" else np.linspace(60, 200, WIDTH) + np.zeros((HEIGHT, 1))
    noisy = clean + random.normal(0, sigma, (6, HEIGHT, WIDTH))
    frames = np.repeat(noisy.round().clip(0, 255).astype(np.uint8)[..., None], 3, axis=3)
    assert measured(frames)["quality.noise.mean"] == pytest.approx(sigma, rel=0.1)


def test_blur_lowers_both_measures_of_sharpness():
    sharp = measured(scene()[None])
    soft = measured(cv2.GaussianBlur(scene(), (0, 0), 3)[None])
    for name in ("quality.laplacian.mean", "quality.tenengrad.mean"):
        assert soft[name] < sharp[name] / 2


def test_one_bad_frame_shows_in_the_min_and_not_in_the_mean():
    frames = np.stack([scene()] * 40)
    frames[17] = cv2.GaussianBlur(scene(), (0, 0), 6)
    frames[18] = frames[17]
    scores = measured(frames)
    assert scores["quality.laplacian.min"] < 0.1 * scores["quality.laplacian.mean"]
    assert scores["quality.laplacian.p10"] > 0.9 * scores["quality.laplacian.mean"]


def test_dark_and_bright_are_the_parts_beyond_the_limits():
    frame = np.full((HEIGHT, WIDTH, 3), 128, np.uint8)
    frame[: HEIGHT // 4], frame[-HEIGHT // 8 :] = 15, 236
    scores = measured(frame[None])
    assert (scores["quality.dark"], scores["quality.bright"]) == (0.25, 0.125)


def test_contrast_is_the_deviation_of_luma_and_entropy_counts_its_levels():
    frame = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    frame[:, ::2] = 100
    scores = measured(frame[None])
    assert scores["quality.contrast.mean"] == pytest.approx(50) and scores["quality.entropy.mean"] == pytest.approx(1)
    ramp = np.repeat(np.tile(np.arange(256, dtype=np.uint8), (HEIGHT, 1))[..., None], 3, axis=2)
    assert measured(ramp[None])["quality.entropy.mean"] == pytest.approx(8)


def test_colourfulness_is_that_of_the_paper():
    random = np.random.default_rng(0)
    frame = cv2.resize(random.integers(0, 255, (24, 40, 3), np.uint8), (WIDTH, HEIGHT))
    red, green, blue = np.moveaxis(frame.astype(float), -1, 0)
    opponents = np.stack([red - green, (red + green) / 2 - blue]).reshape(2, -1)
    expected = np.hypot(*opponents.std(axis=1)) + 0.3 * np.hypot(*opponents.mean(axis=1))
    assert measured(frame[None])["quality.colourfulness.mean"] == pytest.approx(expected, rel=0.01)
    assert measured(flat((90, 90, 90)))["quality.colourfulness.mean"] == 0


def test_flicker_is_its_deviation_and_a_fade_has_none():
    levels = 120 + np.random.default_rng(2).normal(0, 4, 400).round()
    stage = TechnicalQuality(num_frames=96)
    assert stage.measure(ClipFrames.of(flat(*levels), 24.0))["quality.flicker"] == pytest.approx(4, rel=0.15)
    assert measured(flat(*range(20, 116)))["quality.flicker"] == pytest.approx(0, abs=1e-6)


def test_a_cut_is_no_flicker():
    for before in range(4, 14):
        assert measured(flat(*[40] * before, *[200] * (18 - before)))["quality.flicker"] == 0


def jpeg(frame, quality):
    return cv2.imdecode(cv2.imencode(".jpg", frame, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], cv2.IMREAD_COLOR)


def gridded(seed, quality, lines):
    """Luma of frames that were encoded at that many lines, and made smaller to 256 where that is more."""
    film = [scene(seed + k, lines, round(lines * 16 / 9 / 8) * 8) for k in range(3)]
    encoded = [frame if quality is None else jpeg(frame, quality) for frame in film]
    size = (round(encoded[0].shape[1] * min(lines, 256) / lines), min(lines, 256))
    return [cv2.cvtColor(cv2.resize(f, size, interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2GRAY) for f in encoded]


@pytest.mark.parametrize("lines", [256, 480, 720])
def test_the_grid_of_blocks_is_found_though_frames_were_made_smaller(lines):
    clean, fair, poor = (blockiness(gridded(5, quality, lines)) for quality in (None, 20, 10))
    assert clean < 0.08 < fair < poor / 1.3


def test_in_pictures_too_small_for_a_grid_there_are_no_blocks():
    assert blockiness([np.zeros((40, 40), np.uint8)]) == 0


def test_what_the_eye_cannot_see_in_the_dark_is_no_grid():
    faint = np.zeros((HEIGHT, WIDTH), np.uint8)
    faint[::8, ::40], faint[::40, ::8] = 1, 1
    assert blockiness([faint]) < 0.08
