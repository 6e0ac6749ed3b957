"""Tests that cuts are found at the threshold, with and without flashes."""

import numpy as np
import pytest

from nemo_vfm.curate.split.content import ContentSplit
from tests.support.films import FPS, pan

LONG = {"max_length_s": 60.0}


def spans(frames, **settings):
    return list(ContentSplit(**(LONG | settings)).spans(frames, fps=FPS))


def test_a_hard_cut_is_found_and_a_flash_is_none():
    film = np.concatenate([pan(0, 30, step_px=1), pan(1, 30, step_px=1)])
    assert spans(film) == [(0, 30), (30, 60)]
    film[12:14] = 255
    assert spans(film) == [(0, 30), (30, 60)]
    assert spans(film, flash_s=0.0)[0] == (0, 12)


def test_a_higher_threshold_cuts_less():
    film = np.concatenate([pan(0, 30), pan(1, 30)])
    assert spans(film, threshold=250.0) == [(0, 60)]


def test_impossible_settings_are_refused_with_their_numbers():
    with pytest.raises(ValueError, match="threshold must be above 0"):
        ContentSplit(threshold=0)
    with pytest.raises(ValueError, match=r"flash_s .* 0\.6, got 2"):
        ContentSplit(flash_s=2)
