"""Tests that flow gives the known speed of moving clips."""

import numpy as np
import pytest

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.score.motion import Motion
from tests.support.films import HEIGHT, WIDTH, disc_that_moves, pan, texture


def footage(frames, fps=12.0):
    return ClipFrames.of(np.asarray(frames), fps)


@pytest.mark.parametrize("step_px", [1, 3])
@pytest.mark.parametrize("fps", [12.0, 30.0])
def test_motion_is_the_speed_in_percent_of_the_diagonal_per_second(step_px, fps):
    expected = 100 * step_px * fps / np.hypot(HEIGHT, WIDTH)
    assert Motion().measure(footage(pan(5, 24, step_px), fps))["motion"] == pytest.approx(expected, rel=0.15)


def test_a_still_picture_has_no_motion():
    still = np.stack([texture(1)] * 20)
    assert Motion().measure(footage(still)) == {"motion": 0.0, "motion_peak": 0.0}


def test_a_small_thing_that_moves_has_a_high_peak():
    scores = Motion().measure(footage(disc_that_moves()))
    assert scores["motion_peak"] > 3 * scores["motion"]


def test_a_picture_too_small_for_flow_is_refused_in_words():
    with pytest.raises(ValueError, match="too small to measure motion"):
        Motion().measure(ClipFrames.of(np.zeros((2, 8, 8, 3), np.uint8), 12.0))
