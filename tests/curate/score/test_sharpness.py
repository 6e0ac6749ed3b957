"""Tests that blur lowers the sharpness of a video."""

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.score.sharpness import Sharpness
from tests.support.films import blurred, pan


def test_blur_lowers_sharpness():
    sharp, soft = (Sharpness().measure(ClipFrames.of(film, 12.0))["sharpness"] for film in (pan(4), blurred(4)))
    assert sharp > 4 * soft
