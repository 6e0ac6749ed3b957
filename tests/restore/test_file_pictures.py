"""Tests that all shots of a file get one box, except where it would cut a picture or bars change."""

from nemo_vfm.restore.letterbox import Picture, PixelBox, agreed_boxes

WIDTH, HEIGHT = 854, 480
WHOLE = PixelBox(0, 0, WIDTH, HEIGHT)
BARRED, BARRED_TOO, DARK = PixelBox(0, 58, 854, 422), PixelBox(0, 56, 854, 422), PixelBox(120, 100, 730, 380)
ALL_OF_IT = PixelBox(0, 56, 854, 422)
BLACK, TITLE = Picture(None, None), Picture(None, PixelBox(300, 200, 500, 260))


def agreed(*boxes, seconds=2.0):
    pictures = [Picture(box, box) if isinstance(box, PixelBox) else box for box in boxes]
    return agreed_boxes(pictures, [seconds] * len(pictures), WIDTH, HEIGHT)


def test_shots_that_differ_by_a_line_or_two_agree_on_what_holds_all_of_them():
    assert agreed(BARRED, BARRED_TOO, BARRED) == [ALL_OF_IT] * 3


def test_the_dark_and_titles_on_black_take_the_box_of_the_file():
    assert agreed(BLACK, BARRED, DARK, TITLE, BARRED_TOO) == [ALL_OF_IT] * 5
    assert agreed(TITLE, BLACK) == [WHOLE] * 2


def test_a_shot_whose_picture_would_be_cut_keeps_it():
    assert agreed(BARRED, WHOLE, BARRED, BARRED) == [BARRED, WHOLE, BARRED, BARRED]
    outside = Picture(None, PixelBox(300, 430, 500, 470))
    assert agreed(BARRED, outside, BARRED) == [BARRED, WHOLE, BARRED]


def test_bars_that_change_for_good_are_cut_off_as_they_are():
    assert agreed(*[WHOLE] * 6, *[DARK] * 6, TITLE) == [WHOLE] * 6 + [DARK] * 7
    assert agreed(*[WHOLE] * 6, *[DARK] * 4) == [WHOLE] * 10
    back_and_forth = [*[WHOLE] * 4, *[DARK] * 4] * 2
    assert agreed(WHOLE, *back_and_forth) == [WHOLE] * 17, "16 s of a box, but never 10 s on end"


def test_a_file_without_shots_has_no_box():
    assert agreed() == []
