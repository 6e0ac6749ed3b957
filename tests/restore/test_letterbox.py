"""Tests that bars are found to the even line, and that pictures without bars are left alone."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from nemo_vfm.restore.letterbox import Borders, PixelBox, picture_box
from tests.support.filmed import filmed

DATA = Path(os.environ.get("NEMO_VFM_TEST_DATA", "absent")) / "videos"


def film(top=0, bottom=0, left=0, right=0, size=(100, 160), frames=8):
    random = np.random.default_rng(0)
    pictures = random.integers(0, 12, (frames, *size)).astype(np.uint8)  # coded black is never quite black
    inside = (slice(None), slice(top, size[0] - bottom), slice(left, size[1] - right))
    pictures[inside] = random.integers(30, 250, pictures[inside].shape)
    return pictures


@pytest.mark.parametrize(
    ("bars", "box"),
    [
        ({"top": 12, "bottom": 12}, PixelBox(0, 12, 160, 88)),
        ({"left": 30, "right": 30}, PixelBox(30, 0, 130, 100)),
        ({"top": 10, "bottom": 8, "left": 20, "right": 22}, PixelBox(20, 10, 138, 92)),
        ({"top": 11, "bottom": 13}, PixelBox(0, 12, 160, 86)),
        ({"left": 1}, PixelBox(2, 0, 160, 100)),
    ],
)
def test_bars_are_cut_off_to_even_lines(bars, box):
    assert picture_box(film(**bars)) == box


def test_a_film_without_bars_is_left_alone_even_where_its_size_is_odd():
    assert picture_box(film()) is None
    assert picture_box(film(size=(99, 161))) is None


def test_an_odd_film_with_bars_becomes_even():
    assert picture_box(film(top=9, bottom=9, size=(99, 161))) == PixelBox(0, 10, 160, 90)


def test_one_frame_with_light_in_a_bar_is_enough_to_keep_the_pair():
    pictures = film(top=12, bottom=12)
    pictures[5, 3, 80] = 200
    assert picture_box(pictures) is None


def test_dark_edges_that_are_no_pair_of_bars_are_picture():
    gradual = film() * np.linspace(0, 1, 160)  # a vignette at the left
    gradual[:, :, :8] = 0
    assert picture_box(gradual.astype(np.uint8)) is None
    assert picture_box(film(top=12, bottom=12, left=30, right=2)) == PixelBox(0, 12, 160, 88)


def test_frames_of_a_fade_to_black_do_not_widen_the_bars():
    pictures = film(top=12, bottom=12)
    pictures[6:] = 0
    assert picture_box(pictures) == PixelBox(0, 12, 160, 88)


def test_black_clips_and_titles_are_left_alone():
    assert picture_box(np.zeros((8, 100, 160), np.uint8)) is None
    assert picture_box(film(top=40, bottom=40, left=50, right=50)) is None  # a word in the middle
    sparse = np.zeros((8, 100, 160), np.uint8)
    sparse[:, 10:90:16, 10:150:8] = 255  # a page of thin writing
    assert picture_box(sparse) is None


def photographs(seed=0, frames=8, size=(256, 448)):
    """A panning picture of soft shapes and hard edges, in luma."""
    random = np.random.default_rng(seed)
    small = random.uniform(30, 220, (size[0] // 16, size[1] // 8)).astype(np.uint8)
    wide = cv2.resize(small, (2 * size[1], size[0]), interpolation=cv2.INTER_CUBIC)
    for x, y, w, h in random.integers((0, 0, 5, 5), (2 * size[1], size[0], 60, 60), (60, 4)).tolist():
        cv2.rectangle(wide, (x, y), (x + w, y + h), int(random.integers(255)), -1)
    return np.stack([np.roll(wide, -9 * k, axis=1)[:, : size[1]] for k in range(frames)])


def barred(pictures, box, level=None):
    """Bars of one level around a box, or of what is in it, enlarged and blurred."""
    inside = (slice(None), slice(box.top, box.bottom), slice(box.left, box.right))
    framed = np.stack([blurred_copy(one, pictures.shape[:0:-1]) if level is None else np.full_like(whole, level)
                       for one, whole in zip(pictures[inside], pictures, strict=True)])  # fmt: skip
    framed[inside] = pictures[inside]
    return framed


def blurred_copy(picture, size):
    """The middle of a picture, enlarged."""
    height, width = picture.shape
    middle = picture[height // 4 : height * 3 // 4, width // 4 : width * 3 // 4]
    return cv2.GaussianBlur(cv2.resize(middle, size), (0, 0), 12)


SIDES, TOP_AND_BOTTOM = PixelBox(60, 0, 388, 256), PixelBox(0, 30, 448, 226)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("box", "level"),
    [
        (SIDES, 128), (SIDES, 250), (TOP_AND_BOTTOM, 128), (TOP_AND_BOTTOM, 250),
        (PixelBox(60, 0, 448, 256), 5), (PixelBox(0, 0, 448, 226), 5),
        (PixelBox(60, 0, 448, 256), 128), (PixelBox(0, 0, 300, 256), 250), (PixelBox(0, 20, 448, 256), 250),
        (PixelBox(0, 0, 448, 226), 60),
        (PixelBox(154, 0, 294, 256), None), (PixelBox(60, 0, 388, 256), None), (PixelBox(0, 60, 448, 196), None),
    ],
)  # fmt: skip
def test_bars_of_other_kinds_are_cut_off(seed, box, level):
    assert picture_box(photographs(seed)) is None
    assert picture_box(barred(photographs(seed), box, level)) == box


def test_a_white_ground_and_a_blurred_background_are_picture():
    page = np.full((8, 256, 448), 250, np.uint8)
    for k in range(8):
        cv2.circle(page[k], (224 + k, 128), 110, 90, -1)  # a ball on a white table
    assert picture_box(page) is None
    sharp = photographs(1)
    depth = np.stack([cv2.GaussianBlur(one, (0, 0), 12) for one in sharp])
    ball = np.zeros((256, 448), np.uint8)
    cv2.circle(ball, (224, 128), 120, 1, -1)
    assert picture_box(np.where(ball, sharp, depth)) is None


def test_a_plain_ground_at_one_side_is_picture_unless_it_is_quite_plain_and_ends_in_a_line():
    sky = photographs(2)
    sky[:, :90] = np.linspace(180, 210, 90).astype(np.uint8)[:, None]  # brighter towards the horizon
    assert picture_box(sky) is None
    hills = photographs(2)
    for column, height in enumerate((60 + 30 * np.sin(np.arange(448) / 30)).astype(int)):
        hills[:, :height, column] = 250
    assert picture_box(hills) is None


@pytest.mark.skipif(not DATA.is_dir(), reason="NEMO_VFM_TEST_DATA is not set")
@pytest.mark.parametrize("name", ["crush_027.mp4", "dashcam_6.mp4", "dashcam_7.mp4", "flipping_a_pancake.mkv"])
@pytest.mark.parametrize("kind", ["white", "one-sided", "grey side", "blurred"])
@pytest.mark.slow
def test_bars_around_real_videos_are_found_and_clean_ones_have_none(name, kind):
    pictures = filmed(DATA / name).luma(range(0, 60, 8))
    height, width = pictures.shape[1:]
    box = PixelBox(width // 10 * 2, 0, width if "side" in kind else width - width // 10 * 2, height)
    found = picture_box(barred(pictures, box, {"white": 250, "one-sided": 4, "grey side": 128, "blurred": None}[kind]))
    assert picture_box(pictures) is None
    assert found is not None and np.abs(np.subtract(found.corners(), box.corners())).max() <= 2


def test_lines_of_several_frames_have_the_extremes_and_the_means_of_all_whatever_their_order():
    frames = np.random.default_rng(0).integers(0, 255, (3, 48, 64), np.uint8)
    each, joined = [Borders.of(frame) for frame in frames], Borders.combine([Borders.of(frame) for frame in frames])
    for name in ("rows", "columns"):
        lines = [getattr(one, name) for one in each]
        lowest, highest, *means = getattr(joined, name)
        assert (lowest == np.min([one.lowest_LS for one in lines], axis=0)).all()
        assert (highest == np.max([one.highest_LS for one in lines], axis=0)).all()
        for place, mean in enumerate(means, 2):
            assert mean == pytest.approx(np.mean([one[place] for one in lines], axis=0))
