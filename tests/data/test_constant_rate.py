"""Tests the rate of spans and how often each frame is shown, on time stamps made by hand."""

from dataclasses import replace
from fractions import Fraction

import pytest

from nemo_vfm.data.video.video_info import VideoInfo, rate_of, repeated_ratio, times_shown


def info(*pts: int, fps: float = 10.0) -> VideoInfo:
    return VideoInfo(len(pts), fps, 64, 64, "h264", len(pts) / fps, 0, Fraction(1, 1000), pts)


def test_even_stamps_have_the_files_rate_and_are_shown_once():
    even = info(*range(0, 1000, 100))
    assert (
        rate_of(even, (0, 10)) == 10.0 and times_shown(even, (2, 8)) == [1] * 6 and repeated_ratio(even, (0, 10)) == 0
    )


def test_a_span_that_ends_elsewhere_has_a_rate_of_its_own():
    slower = info(*range(0, 500, 100), *range(500, 1500, 200))
    assert rate_of(slower, (0, 5)) == 10.0
    assert rate_of(slower, (5, 9)) == pytest.approx(5.0)


def test_a_span_before_a_hole_has_the_files_rate_and_shows_each_frame_once():
    paused = replace(info(*range(0, 500, 100), *range(9500, 10_000, 100)), holes=(5,))
    for span in ((0, 5), (2, 5), (4, 5), (5, 10)):
        assert rate_of(paused, span) == 10.0 and times_shown(paused, span) == [1] * (span[1] - span[0])


def test_a_frame_that_lasts_longer_comes_again_in_place_of_another():
    varied = info(0, 100, 400, 440, 480, 540, 600, 700)
    assert times_shown(varied, (0, 8)) == [1, 3, 0, 1, 0, 1, 1, 1]
    assert repeated_ratio(varied, (0, 8)) == pytest.approx(2 / 8)
