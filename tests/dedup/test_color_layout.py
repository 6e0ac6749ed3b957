"""Tests that a copy keeps its colour layout, other kinds of pictures do not share it, and blanks have none."""

import cv2
import numpy as np
import pytest

from nemo_vfm.dedup.color_layout import ColourLayoutEmbedder
from tests.support.films import pan

look = ColourLayoutEmbedder().embed


def road(seed: int, *, sky: tuple[int, int, int] = (120, 160, 230)) -> np.ndarray:
    """Sky above, a dark field below, something in it that is elsewhere in every film."""
    random = np.random.default_rng(seed)
    frames = np.empty((4, 120, 200, 3), np.uint8)
    frames[:, :70], frames[:, 70:] = sky, (60, 50, 20)
    frames = np.clip(frames + random.normal(0, 6, frames.shape), 0, 255).astype(np.uint8)
    left = int(random.integers(0, 160))
    frames[:, 40:80, left : left + 30] = (30, 90, 40)
    return frames


def test_no_vector_is_longer_than_one():
    assert all(np.linalg.norm(look(film)) <= 1 for film in (pan(0, 4), road(0), np.zeros((2, 40, 60, 3), np.uint8)))


def test_two_places_of_one_drive_are_alike_and_another_sky_is_less_so():
    assert look(road(1)) @ look(road(2)) > 0.85
    assert look(road(1)) @ look(road(2, sky=(230, 120, 60))) < 0.75


def test_generated_films_are_not_alike():
    rows = np.stack([look(pan(seed, 4)) for seed in range(20)])
    assert np.triu(rows @ rows.T, k=1).max() < 0.7


def test_a_smaller_copy_in_a_frame_of_black_is_the_same_kind():
    film = road(3)
    small = np.stack([cv2.resize(frame, (100, 60), interpolation=cv2.INTER_AREA) for frame in film])
    boxed = np.pad(small, ((0, 0), (20, 20), (0, 0), (0, 0)))
    assert look(boxed) @ look(film) > 0.85


def test_a_black_clip_is_like_no_other():
    black = np.zeros((2, 40, 60, 3), np.uint8)
    assert look(black) @ look(black) < 0.6


def test_frames_are_spread_over_the_clip():
    assert ColourLayoutEmbedder(num_frames=3).frame_indices(11) == [0, 5, 10]
    assert ColourLayoutEmbedder().frame_indices(1) == [0]


def test_no_frames_are_refused():
    with pytest.raises(ValueError, match="num_frames is 0"):
        ColourLayoutEmbedder(num_frames=0)
