# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Clips with a known property, and the score that must say so."""

import cv2
import numpy as np
import pytest

from nemo_vfm.curate.footage import Footage
from nemo_vfm.curate.motion import Motion
from nemo_vfm.curate.quality import Brightness, Freeze, Sharpness
from tests.support.films import HEIGHT, WIDTH, black, blurred, pan, texture


def footage(frames, fps=12.0):
    return Footage.of(np.asarray(frames), fps)


@pytest.mark.parametrize("step_px", [1, 3])
@pytest.mark.parametrize("fps", [12.0, 30.0])
def test_motion_is_the_speed_in_percent_of_the_diagonal_per_second(step_px, fps):
    expected = 100 * step_px * fps / np.hypot(HEIGHT, WIDTH)
    assert Motion().measure(footage(pan(5, 24, step_px), fps))["motion"] == pytest.approx(expected, rel=0.15)


def test_a_still_picture_has_no_motion_and_is_frozen():
    still = np.stack([texture(1)] * 20)
    assert Motion().measure(footage(still)) == {"motion": 0.0, "motion_peak": 0.0}
    assert Freeze().measure(footage(still)) == {"freeze_ratio": 1.0}


def test_a_small_thing_that_moves_has_a_high_peak_and_is_not_frozen():
    frames = np.full((24, HEIGHT, WIDTH, 3), 200, np.uint8)
    for index, frame in enumerate(frames):
        cv2.circle(frame, (20 + 3 * index, 50), 9, (215, 215, 190), -1)
    scores = Motion().measure(footage(frames))
    assert scores["motion_peak"] > 3 * scores["motion"]
    assert Freeze().measure(footage(frames)) == {"freeze_ratio": 0.0}


def test_half_frozen_is_half():
    moving, still = pan(2, 40, 3), np.stack([texture(9)] * 40)
    assert Freeze().measure(footage(np.concatenate([moving, still])))["freeze_ratio"] == pytest.approx(0.5, abs=0.13)


def test_blur_lowers_sharpness():
    sharp, soft = (Sharpness().measure(footage(film))["sharpness"] for film in (pan(4), blurred(4)))
    assert sharp > 4 * soft


def test_black_is_black_and_grey_is_not():
    assert Brightness().measure(footage(black())) == {"luma_mean": 0.0, "luma_std": 0.0, "black_ratio": 1.0}
    grey = Brightness().measure(footage(black() + np.uint8(128)))
    assert (grey["luma_mean"], grey["black_ratio"]) == (128.0, 0.0)


@pytest.mark.parametrize("num_frames", [1, 2, 3, 7, 100])
def test_pairs_are_neighbours_inside_the_clip(num_frames):
    numbers = Footage.of(np.zeros((num_frames, 2, 2, 3), np.uint8), 12.0).pairs(8)
    assert len(numbers) == 16 and numbers[::2] == sorted(numbers[::2])
    assert all(
        after == min(before + 1, num_frames - 1) for before, after in zip(numbers[::2], numbers[1::2], strict=True)
    )


def test_footage_gives_the_frames_that_are_asked_for():
    frames = np.stack([np.full((20, 20, 3), index, np.uint8) for index in range(100)])
    footage = Footage.of(frames, 12.0)
    assert footage.frames([7, 3, 7])[:, 0, 0, 0].tolist() == [7, 3, 7]
    assert footage.luma([9, 3])[:, 0, 0].tolist() == [9, 3]
    assert footage.evenly(5) == [0, 25, 50, 74, 99]
    assert footage.per_second(2.0, 100) == list(range(0, 100, 6))
    assert footage.per_second(2.0, 4) == [0, 30, 66, 96]


def test_one_frame_alone_can_be_scored():
    one = Footage.of(texture(0)[None], 12.0)
    for stage in (Motion(), Sharpness(), Brightness(), Freeze()):
        assert set(stage.measure(one)) == set(stage.columns())


def test_a_picture_too_small_for_flow_is_refused_in_words():
    with pytest.raises(ValueError, match="too small to see motion"):
        Motion().measure(Footage.of(np.zeros((2, 8, 8, 3), np.uint8), 12.0))
