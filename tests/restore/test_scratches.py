"""Tests that upright scratches of any width are found where they are, with what they add, and two are two."""

import cv2
import numpy as np
import pytest

from nemo_vfm.restore.scratches import find_scratches

HEIGHT, WIDTH = 128, 192


def film(seed: int = 0) -> np.ndarray:
    """Eight grainy frames of a soft picture, in grey levels."""
    random = np.random.default_rng(seed)
    soft = cv2.GaussianBlur(random.uniform(40, 200, (HEIGHT, WIDTH)), (0, 0), 6)
    return 120 + 4 * (soft - soft.mean()) + random.normal(0, 4, (8, HEIGHT, WIDTH))


def found(frames: np.ndarray) -> tuple[int, np.ndarray]:
    scratches = find_scratches(np.clip(frames, 0, 255).astype(np.uint8))
    assert scratches is not None
    return scratches.count, scratches.added_HW


@pytest.mark.parametrize("level", [25, -25])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_a_scratch_of_up_to_five_columns_is_found_with_its_level_and_its_ends(width: int, level: int) -> None:
    frames, columns = film(), slice(90, 90 + width)
    frames[:, 20:110, columns] += level
    count, added_HW = found(frames)
    assert count == 1 and added_HW[30:100, columns].mean() == pytest.approx(level, rel=0.2)
    assert not added_HW[:10].any() and not added_HW[120:].any()
    added_HW[:, 87 : 93 + width] = 0
    assert not added_HW.any(), "nothing beyond its sides"


def test_two_scratches_are_counted_and_mended_each_by_its_own_level() -> None:
    frames = film()
    frames[:, :, 50:52] += 30
    frames[:, :, 130:133] -= 20
    count, added_HW = found(frames)
    assert count == 2
    assert np.median(added_HW[:, 50:52]) == pytest.approx(30, rel=0.2)
    assert np.median(added_HW[:, 130:133]) == pytest.approx(-20, rel=0.2)


def test_the_edges_of_plain_areas_are_no_scratches() -> None:
    frames = np.full((8, HEIGHT, WIDTH), 100)
    frames[:, :, 40:80], frames[:, :, 120:150] = 180, 30
    assert find_scratches(frames.astype(np.uint8)) is None


def test_a_line_that_is_bright_in_one_frame_and_dark_in_the_next_is_no_scratch() -> None:
    frames = film()
    assert find_scratches(np.clip(frames, 0, 255).astype(np.uint8)) is None
    frames[::4, :, 90:92] += 30
    frames[1::4, :, 90:92] -= 30
    assert find_scratches(np.clip(frames, 0, 255).astype(np.uint8)) is None
