"""Tests that the shape reader names what was drawn, also after x264, and finds nothing in empty videos."""

import io
from dataclasses import replace

import av
import numpy as np
import pytest

from nemo_vfm.data.video.encode import encode_mp4
from nemo_vfm.metrics.shape_reader import SHAPES, ShapeReading, read
from nemo_vfm.synth import shot_plan
from nemo_vfm.synth.shot_plan import Shot, draw

SHOTS = [shot for film in shot_plan.films(seed=5, num_films=4, shots_per_film=12) for shot in film]


def _shrink(video: np.ndarray, side: int) -> np.ndarray:
    frames, height, width, _ = video.shape
    boxes = video.reshape(frames, side, height // side, side, width // side, 3)
    return boxes.mean((2, 4)).astype(np.uint8)


def _moving(shots: list[Shot]) -> list[Shot]:
    return [shot for shot in shots if shot.direction and not shot.num_fade_frames]


@pytest.mark.slow
def test_every_drawn_shot_is_read_right_at_48_px():
    for shot in _moving(SHOTS):
        reading = read(_shrink(draw(shot, side_px=96)[4:20:2], 48))
        assert (reading.colour, reading.shape, reading.direction) == (shot.colour, shot.shape, shot.direction)


@pytest.mark.slow
def test_every_drawn_shot_is_read_right_after_x264():
    for shot in _moving(SHOTS)[::4]:
        file = io.BytesIO()
        encode_mp4(file, draw(shot, side_px=64)[4:20:2], 6, crf=28)
        file.seek(0)
        with av.open(file) as container:
            frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
        reading = read(frames)
        assert (reading.colour, reading.shape, reading.direction) == (shot.colour, shot.shape, shot.direction)


@pytest.mark.slow
def test_outlines_are_told_at_max_sizes_under_blur_and_noise():
    random, right, total = np.random.default_rng(0), 0, 0
    for shot in _moving(SHOTS)[::2]:
        for radius in (0.14, 0.2, 0.27):
            video = _shrink(draw(replace(shot, radius=radius), side_px=96)[4:20:2], 24).repeat(2, 1).repeat(2, 2)
            noisy = np.clip(video + random.normal(0, 8, video.shape), 0, 255).astype(np.uint8)
            right, total = right + (read(noisy).shape == shot.shape), total + 1
    assert right / total >= 0.95, f"{right} of {total}"


def test_an_object_that_stands_still_has_a_colour_and_no_direction():
    still = next(shot for shot in SHOTS if shot.direction is None)
    reading = read(draw(still, side_px=64)[:8])
    assert (reading.colour, reading.direction) == (still.colour, None)


def test_a_film_shown_backwards_moves_the_other_way():
    shot = next(shot for shot in SHOTS if shot.direction == "left")
    forward, backward = read(draw(shot, side_px=64)), read(draw(shot, side_px=64)[::-1])
    assert (forward.direction, backward.direction) == ("left", "right")
    assert forward.travel[0] == pytest.approx(-shot.travel, abs=0.05)


@pytest.mark.parametrize("scale", [10, 40, 80, 127])
def test_noise_of_any_strength_holds_no_object(scale: int):
    random = np.random.default_rng(scale)
    for cell in (1, 4, 8):
        noise = random.normal(128, scale, (8, 48 // cell, 48 // cell, 3)).repeat(cell, 1).repeat(cell, 2)
        assert read(np.clip(noise, 0, 255).astype(np.uint8)) == ShapeReading(None, None)


def test_grey_and_plain_coloured_pictures_hold_no_object():
    for colour in ((128, 128, 128), (0, 0, 0), (214, 48, 49)):
        assert read(np.broadcast_to(np.array(colour, np.uint8), (8, 48, 48, 3))) == ShapeReading(None, None)


def test_what_is_no_video_is_refused_with_its_shape():
    with pytest.raises(ValueError, match="float32"):
        read(np.zeros((8, 48, 48, 3), np.float32))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(1, 48, 48, 3\)"):
        read(np.zeros((1, 48, 48, 3), np.uint8))


@pytest.mark.filterwarnings("error")
def test_a_speck_is_read_without_a_warning():
    video = np.full((8, 48, 48, 3), 90, np.uint8)
    video[:, 20:24, 20:24] = (214, 48, 49)
    assert read(video).shape in SHAPES
