"""Tests that bars are cut off and the picture keeps its bits."""

import numpy as np

from nemo_vfm.curate.restore.crop_letterbox import Letterbox
from tests.support.films import black, pan


def test_bars_go_and_the_picture_keeps_every_bit():
    film = pan(3)[:8] // 2 + 60
    barred = film.copy()
    barred[:, :14], barred[:, 82:] = 0, 0
    found = Letterbox().look(barred)
    assert np.array_equal(found.apply(barred), film[:, 14:82])
    assert found.apply(barred[:2]).flags["C_CONTIGUOUS"]
    assert found.facts() == {
        "letterbox.left": 0, "letterbox.top": 14, "letterbox.width": 128, "letterbox.height": 68
    }  # fmt: skip
    assert set(found.facts()) == set(Letterbox().columns())


def test_films_without_bars_and_black_ones_are_left_as_they_are():
    assert Letterbox().look(pan(3)[:8] // 2 + 60) is None
    assert Letterbox().look(black(8)) is None
