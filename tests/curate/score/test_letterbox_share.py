"""Tests which part of the picture black bars take."""

import numpy as np
import pytest

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.score.letterbox_share import Letterbox
from tests.support.films import HEIGHT, black, pan


def ratio(frames):
    return Letterbox().measure(ClipFrames.of(frames, 12.0))["letterbox.ratio"]


@pytest.mark.parametrize("bar_px", [0, 8, 16])
def test_the_ratio_is_the_part_of_the_picture_in_bars(bar_px):
    film = pan(7, 24, 3).copy()
    film[:, :bar_px], film[:, HEIGHT - bar_px :] = 0, 0
    assert ratio(film) == pytest.approx(2 * bar_px / HEIGHT)


def test_a_black_clip_and_a_title_on_black_have_no_bars():
    title = np.zeros_like(black())
    title[:, 40:50, 30:90] = 255
    assert ratio(black()) == ratio(title) == 0
