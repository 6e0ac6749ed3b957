"""Tests that the destriping benchmark gains enough on eight pictures in both directions, and writes a picture."""

from pathlib import Path

import cv2
import pytest

from tests.support.benchmarks import figures_of

pytestmark = pytest.mark.soak  # a whole benchmark, of half a minute


def test_eight_pictures_gain_more_than_was_asked_in_both_directions(tmp_path: Path):
    picture = tmp_path / "picture.png"
    figures = figures_of("destripe", "--quick", "--picture", str(picture), folder=tmp_path)
    for direction in ("vertical", "horizontal"):
        assert figures[direction]["gain_db"] >= 5.5
        assert figures[direction]["gain_over_emptied_db"] >= 0.5
    assert figures["gain_uint16_db"] >= 12
    assert figures.get("over_algotom_db", 0) >= 0 and figures.get("over_pystripe_db", 5) >= 5
    assert figures["half_length_found"] >= 10 and figures["half_length_found_still"] >= 10
    assert figures["cpu_s_per_1080p_frame"] > figures["cpu_s_per_still_1080p_frame"] > 0
    seen = cv2.imread(str(picture))
    assert seen is not None and seen.shape[1] == 4 * 256
