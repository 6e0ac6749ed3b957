# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Bars are found to the even line; what has none, or is hardly a picture, is left alone."""

import numpy as np
import pytest

from nemo_vfm.restore.letterbox import Box, picture_box


def film(top=0, bottom=0, left=0, right=0, size=(100, 160), frames=8):
    random = np.random.default_rng(0)
    pictures = random.integers(0, 12, (frames, *size)).astype(np.uint8)  # coded black is never quite black
    inside = (slice(None), slice(top, size[0] - bottom), slice(left, size[1] - right))
    pictures[inside] = random.integers(30, 250, pictures[inside].shape)
    return pictures


@pytest.mark.parametrize(
    ("bars", "box"),
    [
        ({"top": 12, "bottom": 12}, Box(0, 12, 160, 88)),
        ({"left": 30, "right": 30}, Box(30, 0, 130, 100)),
        ({"top": 10, "bottom": 8, "left": 20, "right": 22}, Box(20, 10, 138, 92)),
        ({"top": 11, "bottom": 13}, Box(0, 12, 160, 86)),
        ({"left": 1}, Box(2, 0, 160, 100)),
    ],
)
def test_bars_are_cut_off_to_even_lines(bars, box):
    assert picture_box(film(**bars)) == box


def test_a_film_without_bars_is_left_alone_even_where_its_size_is_odd():
    assert picture_box(film()) is None
    assert picture_box(film(size=(99, 161))) is None


def test_an_odd_film_with_bars_becomes_even():
    assert picture_box(film(top=9, bottom=9, size=(99, 161))) == Box(0, 10, 160, 90)


def test_one_frame_with_light_in_a_bar_is_enough_to_keep_the_pair():
    pictures = film(top=12, bottom=12)
    pictures[5, 3, 80] = 200
    assert picture_box(pictures) is None


def test_dark_edges_that_are_no_pair_of_bars_are_picture():
    assert picture_box(film(left=30)) is None
    assert picture_box(film(top=12, bottom=12, left=30, right=2)) == Box(0, 12, 160, 88)


def test_frames_of_a_fade_to_black_do_not_widen_the_bars():
    pictures = film(top=12, bottom=12)
    pictures[6:] = 0
    assert picture_box(pictures) == Box(0, 12, 160, 88)


def test_black_clips_and_titles_are_left_alone():
    assert picture_box(np.zeros((8, 100, 160), np.uint8)) is None
    assert picture_box(film(top=40, bottom=40, left=50, right=50)) is None  # a word in the middle
    sparse = np.zeros((8, 100, 160), np.uint8)
    sparse[:, 10:90:16, 10:150:8] = 255  # a page of thin writing
    assert picture_box(sparse) is None
