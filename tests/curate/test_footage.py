"""Tests that footage gives the frames that are asked for, by number."""

import numpy as np
import pytest

from nemo_vfm.curate.record.footage import ClipFrames


@pytest.mark.parametrize("num_frames", [1, 2, 3, 7, 100])
def test_pairs_are_neighbours_inside_the_clip(num_frames):
    numbers = ClipFrames.of(np.zeros((num_frames, 2, 2, 3), np.uint8), 12.0).pairs(8)
    assert len(numbers) == 16 and numbers[::2] == sorted(numbers[::2])
    assert all(
        after == min(before + 1, num_frames - 1) for before, after in zip(numbers[::2], numbers[1::2], strict=True)
    )


def test_footage_gives_the_frames_that_are_asked_for():
    frames = np.stack([np.full((20, 20, 3), index, np.uint8) for index in range(100)])
    footage = ClipFrames.of(frames, 12.0)
    assert footage.frames([7, 3, 7])[:, 0, 0, 0].tolist() == [7, 3, 7]
    assert footage.luma([9, 3])[:, 0, 0].tolist() == [9, 3]
    assert footage.evenly(5) == [0, 25, 50, 74, 99]
    assert footage.per_second(2.0, 100) == list(range(0, 100, 6))
    assert footage.per_second(2.0, 4) == [0, 30, 66, 96]
