"""Tests that frames of any kind are split into spans of one length, in whole frames."""

import numpy as np
import pytest

from nemo_vfm.curate.split.stride import FixedStride

NOTHING = np.zeros((2, 2, 3), np.uint8)


def spans(num_frames: int, fps: float, **settings) -> list[tuple[int, int]]:
    return list(FixedStride(**settings).spans([NOTHING] * num_frames, fps=fps))


def test_spans_have_the_length_and_a_short_rest_joins_or_is_left():
    assert spans(65, 10, length_s=3, min_length_s=1) == [(0, 30), (30, 65)]
    assert spans(65, 10, length_s=3, min_length_s=1, short_tail="leave") == [(0, 30), (30, 60), (60, 65)]
    assert spans(70, 10, length_s=3, min_length_s=1) == [(0, 30), (30, 60), (60, 70)]
    assert spans(5, 10, length_s=3) == [(0, 5)]


def test_a_broken_frame_rate_does_not_add_up_to_a_drift():
    lengths = {stop - first for first, stop in spans(30_000, 30_000 / 1001, length_s=2)[:-1]}
    assert lengths == {59}


def test_a_span_comes_as_soon_as_its_rest_is_long_enough():
    seen = 0

    def come():
        nonlocal seen
        for _ in range(100):
            seen += 1
            yield NOTHING

    (first, *_) = (seen for _ in FixedStride(length_s=3, min_length_s=1).spans(come(), fps=10))
    assert first == 40


def test_a_rest_longer_than_a_span_is_refused():
    with pytest.raises(ValueError, match=r"min_length_s 4 .* length_s 3"):
        FixedStride(length_s=3, min_length_s=4)
