"""Tests that camera motion finds the known speed and direction of a moving camera."""

import cv2
import numpy as np
import pytest

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.score.camera_motion import CameraMotion

HEIGHT, WIDTH, FPS = 180, 320, 24.0


def picture(seed=0):
    """Sharp things on a large picture, more than the camera ever sees."""
    random = np.random.default_rng(seed)
    made = np.full((3 * HEIGHT, 3 * WIDTH, 3), 120, np.uint8)
    for _ in range(900):
        x, y = random.integers(0, 3 * WIDTH), random.integers(0, 3 * HEIGHT)
        colour = random.integers(0, 255, 3).tolist()
        cv2.rectangle(made, (x, y), (x + int(random.integers(5, 40)), y + int(random.integers(5, 40))), colour, -1)
    return cv2.GaussianBlur(made, (3, 3), 0)


def filmed(pan_x=0.0, pan_y=0.0, zoom=0.0, roll=0.0, shake=0.0, num_frames=36, seed=0):
    """Speeds of the camera a second: pixels to the right, pixels down, growth, degrees clockwise; jitter in pixels."""
    random, made = np.random.default_rng(seed), picture(seed)
    frames = []
    for time_s in np.arange(num_frames) / FPS:
        jitter = random.normal(0, shake, 2)
        scale, angle = np.exp(zoom * time_s), np.radians(roll * time_s)
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) * scale
        at = np.array([1.5 * WIDTH + pan_x * time_s, 1.5 * HEIGHT + pan_y * time_s]) + jitter
        shift = np.array([WIDTH / 2, HEIGHT / 2]) - turn @ at
        frames.append(cv2.warpAffine(made, np.column_stack([turn, shift]), (WIDTH, HEIGHT)))
    return ClipFrames.of(np.stack(frames), FPS)


@pytest.mark.parametrize(
    ("speeds", "column", "expected", "word"),
    [
        ({"pan_x": 64}, "pan_x", 20.0, "pan right"),
        ({"pan_x": -64}, "pan_x", -20.0, "pan left"),
        ({"pan_y": 36}, "pan_y", 20.0, "tilt down"),
        ({"pan_y": -36}, "pan_y", -20.0, "tilt up"),
        ({"zoom": 0.3}, "zoom", 0.3, "zoom in"),
        ({"zoom": -0.3}, "zoom", -0.3, "zoom out"),
        ({"roll": 20}, "roll", 20.0, "roll right"),
        ({"roll": -20}, "roll", -20.0, "roll left"),
        ({"pan_x": 48, "zoom": 0.3, "roll": 20}, "zoom", 0.3, "moving"),
    ],
)
def test_the_speed_of_the_camera_and_its_sign_are_found(speeds, column, expected, word):
    scores = CameraMotion().measure(filmed(**speeds))
    assert scores[f"camera.{column}"] == pytest.approx(expected, rel=0.03)
    assert scores["camera"] == word and scores["camera.residual"] < 0.1
    others = set() if len(speeds) > 1 else {"pan_x", "pan_y", "zoom", "roll"} - set(speeds)
    assert all(abs(scores[f"camera.{other}"]) < 0.5 for other in others)


def test_a_camera_that_pans_left_sees_the_picture_go_right():
    frames = filmed(pan_x=-48).frames(range(36))
    assert np.array_equal(frames[0][20:-20, 20:-44], frames[12][20:-20, 44:-20])


@pytest.mark.parametrize("seed", range(3))
def test_a_camera_that_trembles_is_shaky_though_its_mean_is_still(seed):
    scores = CameraMotion().measure(filmed(shake=1.5, seed=seed))
    assert scores["camera"] == "shaky" and abs(scores["camera.pan_x"]) < scores["camera.shake"] / 2


def test_a_smooth_pan_has_next_to_no_shake():
    assert CameraMotion().measure(filmed(pan_x=64))["camera.shake"] < 1.0


def test_a_camera_that_stands_is_static_though_things_cross_its_picture():
    frames = filmed().frames(range(36)).copy()
    for number, frame in enumerate(frames):
        frame[40:90, 4 * number : 4 * number + 60] = cv2.resize(picture(9)[:200, :240], (60, 50))
    scores = CameraMotion().measure(ClipFrames.of(frames, FPS))
    assert scores["camera"] == "static" and scores["camera.residual"] > 0.5


def test_one_jolt_does_not_move_a_static_camera():
    still, moved = filmed().frames(range(36)).copy(), filmed(pan_x=24).frames([12])[0]
    still[17:] = moved
    assert CameraMotion().measure(ClipFrames.of(still, FPS))["camera"] == "static"


def test_the_rate_and_size_of_a_film_do_not_change_what_is_said():
    film = filmed(pan_x=64).frames(range(36))
    halved = np.stack([cv2.resize(frame, (WIDTH // 2, HEIGHT // 2), interpolation=cv2.INTER_AREA) for frame in film])
    for other in (ClipFrames.of(film[::2], FPS / 2), ClipFrames.of(halved, FPS)):
        assert CameraMotion().measure(other)["camera.pan_x"] == pytest.approx(20.0, rel=0.05)


def test_where_nothing_can_be_followed_the_word_is_unknown():
    flat = np.full((20, HEIGHT, WIDTH, 3), 90, np.uint8)
    noise = np.random.default_rng(0).integers(0, 255, (20, HEIGHT, WIDTH, 3), np.uint8)
    assert CameraMotion().measure(ClipFrames.of(flat, FPS))["camera"] == "unknown"
    assert CameraMotion().measure(ClipFrames.of(noise, FPS))["camera"] == "unknown"


def test_the_same_film_gets_the_same_numbers():
    film = filmed(pan_x=20, shake=1)
    assert CameraMotion().measure(film) == CameraMotion().measure(film)
