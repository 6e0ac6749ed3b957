"""Tests that the seam ratio is 1 without seams, and the ratio of the jumps with them."""

import numpy as np
import pytest

from nemo_vfm.metrics.video_quality import seam_ratio

NOISE = np.random.default_rng(0).integers(0, 200, (4, 48, 32, 3)).astype(np.uint8)


def test_noise_a_slope_and_a_flat_picture_have_no_seams() -> None:
    slope = np.broadcast_to(np.arange(48, dtype=np.uint8)[None, :, None, None] * 2, (2, 48, 48, 3))
    assert seam_ratio([NOISE], 8) == pytest.approx(1, abs=0.03)
    assert seam_ratio([slope], 8) == pytest.approx(1) and seam_ratio([np.zeros((2, 16, 16, 3), np.uint8)], 8) == 1


def test_jumps_at_borders_are_counted_against_those_elsewhere_also_over_several_videos() -> None:
    rows, columns = np.indices((48, 48))
    board = ((rows // 8 + columns // 8) % 2 * 30 + (rows + columns) % 2 * 10).astype(np.uint8)
    video = np.broadcast_to(board[None, :, :, None], (3, 48, 48, 3))
    # Half of the steps over a border climb 30 + 10 or fall as much, the other half differ by 30 - 10.
    assert seam_ratio([video], 8) == pytest.approx(3)
    assert 1 < seam_ratio([video, NOISE], 8) < 3
    assert seam_ratio([video], 6) < 2 and seam_ratio([np.full((1, 8, 8, 3), 7, np.uint8), video], 4) > 1


def test_only_borders_differ_in_flat_blocks() -> None:
    blocks = np.random.default_rng(1).integers(0, 255, (2, 3, 3, 3)).astype(np.uint8).repeat(8, 1).repeat(8, 2)
    assert seam_ratio([blocks], 8) == float("inf")


def test_seams_of_one_direction_count_whichever_it_is_and_a_turned_video_has_as_many() -> None:
    stripes = (np.arange(48) // 8 % 2 * 40 + np.arange(48) % 2 * 10).astype(np.uint8)[None, :, None, None]
    lying = np.broadcast_to(stripes, (2, 48, 48, 3))
    assert seam_ratio([lying], 8) == pytest.approx(seam_ratio([lying.swapaxes(1, 2)], 8)) and seam_ratio([lying], 8) > 3
    assert seam_ratio([NOISE[:, :, :8]], 8) == pytest.approx(1, abs=0.1), "one column of blocks has borders, too"


def test_a_block_as_large_as_the_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="no picture is larger than one block of 48 px"):
        seam_ratio([NOISE], 48)
    with pytest.raises(ValueError, match="2 or more, got 1"):
        seam_ratio([NOISE], 1)


def test_colours_stored_at_half_the_resolution_are_no_seams() -> None:
    random, luma = np.random.default_rng(2), np.array([0.299, 0.587, 0.114])
    colour = random.normal(0, 30, (3, 24, 24, 3)).repeat(2, 1).repeat(2, 2)
    grey = random.normal(128, 10, (3, 48, 48, 1))
    video = np.clip(grey + colour - (colour @ luma)[..., None], 0, 255).round().astype(np.uint8)
    assert seam_ratio([video], 8) == pytest.approx(1, abs=0.05)
