"""Tests that brightness scores tell black from grey."""

import numpy as np

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.score.brightness import Brightness
from tests.support.films import black


def test_black_is_black_and_grey_is_not():
    assert Brightness().measure(ClipFrames.of(black(), 12.0)) == {"luma_mean": 0.0, "luma_std": 0.0, "black_ratio": 1.0}
    grey = Brightness().measure(ClipFrames.of(black() + np.uint8(128), 12.0))
    assert (grey["luma_mean"], grey["black_ratio"]) == (128.0, 0.0)
