"""Tests that the nearest clip is the one a person would point at."""

import dataclasses

import numpy as np
import pytest

from nemo_vfm.metrics.video_quality import nearest, thumbnail
from nemo_vfm.synth import shot_plan
from nemo_vfm.synth.shot_plan import draw

SHOTS = shot_plan.films(seed=1, num_films=1, shots_per_film=6)[0]


def test_a_noisy_smaller_copy_is_nearest_to_its_original():
    clips = [thumbnail(draw(shot, side_px=64)) for shot in SHOTS]
    noise = np.random.default_rng(0).normal(0, 10, (SHOTS[2].num_frames, 32, 32, 3))
    copy = np.clip(draw(dataclasses.replace(SHOTS[2]), side_px=32) + noise, 0, 255).astype(np.uint8)
    index, distance = nearest(thumbnail(copy), clips)
    assert index == 2 and 0 < distance < 0.05


def test_a_clip_has_distance_zero_to_itself_and_opposite_pictures_distance_one():
    black, white = (np.full((2, 16, 16, 3), value, np.uint8) for value in (0, 255))
    assert nearest(thumbnail(white), [thumbnail(black), thumbnail(white)]) == (1, 0.0)
    assert nearest(thumbnail(white), [thumbnail(black)])[1] == pytest.approx(1)
    grey = np.full((2, 16, 16, 3), 51, np.uint8)
    assert nearest(thumbnail(grey), [thumbnail(white), thumbnail(black)]) == (1, pytest.approx(0.2))


def test_frames_are_looked_at_from_the_first_to_the_last():
    """Clips that begin alike are told apart by what comes later."""
    clips = np.zeros((2, 9, 16, 16, 3), np.uint8)
    clips[0, 8], clips[1, 5:] = 255, 255
    for number in (0, 1):
        assert nearest(thumbnail(clips[number]), [thumbnail(clip) for clip in clips]) == (number, 0.0)
    assert thumbnail(clips[0]).reshape(4, -1).mean(1).tolist() == [0, 0, 0, 1]
    assert thumbnail(clips[1]).reshape(4, -1).mean(1).tolist() == [0, 0, 1, 1]


def test_sizes_that_do_not_divide_are_averaged_over_whole_boxes():
    assert thumbnail(np.full((3, 50, 37, 3), 51, np.uint8)) == pytest.approx(0.2)


def test_too_small_a_video_and_an_empty_collection_are_refused():
    with pytest.raises(ValueError, match="8 x 8"):
        thumbnail(np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match="no training clip"):
        nearest(np.zeros(4, np.float32), [])
