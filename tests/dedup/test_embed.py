# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""What a copy keeps and what another film does not share."""

import cv2
import numpy as np
import pytest

from nemo_vfm.dedup.embed import embed
from tests.support.films import pan


def test_the_vector_has_length_one():
    assert np.linalg.norm(embed(pan(0, 8))) == pytest.approx(1, abs=1e-5)


def test_a_smaller_copy_is_alike_and_another_film_is_not():
    film = pan(1, 8)
    copy = np.stack([cv2.resize(frame, (64, 48), interpolation=cv2.INTER_AREA) for frame in film])
    assert embed(film) @ embed(copy) > 0.95
    assert embed(film) @ embed(pan(2, 8)) < 0.6


def test_the_same_shapes_in_other_colours_are_less_alike_than_a_copy():
    film = pan(1, 8)
    assert embed(film) @ embed(film[..., ::-1]) < 0.95


def test_a_weight_outside_its_range_is_refused():
    with pytest.raises(ValueError, match=r"hash_weight is 1\.5"):
        embed(pan(0, 2), hash_weight=1.5)
