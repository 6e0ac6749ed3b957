"""Tests that sequences of signatures find cut copies and no strangers."""

import cv2
import numpy as np
import pytest

from nemo_vfm.dedup.sequence import contained_share, find_pairs, signature

RNG = np.random.default_rng(0)


def scenery(seed: int, num_frames: int, step_px: int = 12) -> np.ndarray:
    """A view that wanders over a large picture, four frames a second: each frame differs from the last."""
    big = np.random.default_rng(seed).uniform(0, 255, (12, 40, 3)).astype(np.float32)
    big = np.clip(cv2.resize(big, (800, 120), interpolation=cv2.INTER_CUBIC), 0, 255).astype(np.uint8)
    return np.stack([big[:, step_px * step : step_px * step + 160] for step in range(num_frames)])


def signatures(frames: np.ndarray) -> np.ndarray:
    return np.stack([signature(frame) for frame in frames])


def test_a_piece_is_found_in_the_whole_at_any_offset():
    whole = signatures(scenery(0, 40))
    assert min(contained_share(whole[first : first + 8], whole) for first in range(0, 33)) > 0.95


def test_which_one_comes_first_does_not_matter():
    whole = signatures(scenery(0, 30))
    assert contained_share(whole, whole[5:12]) == contained_share(whole[5:12], whole)


def test_a_smaller_and_darker_copy_is_found():
    frames = scenery(1, 20)
    small = np.stack([cv2.resize(frame, (80, 60), interpolation=cv2.INTER_AREA) for frame in frames[4:14]])
    assert contained_share(signatures((small * 0.8).astype(np.uint8)), signatures(frames)) > 0.9


def test_samples_taken_between_those_of_the_whole_are_found():
    frames = scenery(2, 40, step_px=8)
    assert contained_share(signatures(frames[9:29:2]), signatures(frames[::2])) > 0.9


def test_strangers_are_not_alike():
    films = [signatures(scenery(seed, 20)) for seed in range(12)]
    assert find_pairs(films, 0.5) == []


def test_half_of_a_clip_that_another_shares_counts_half():
    ours, theirs = signatures(scenery(0, 20)), signatures(scenery(1, 20))
    assert contained_share(np.concatenate([ours[:10], theirs[:10]]), ours) == pytest.approx(0.5, abs=0.1)


def test_the_same_frames_in_another_order_are_not_a_copy():
    frames = signatures(scenery(3, 24))
    assert contained_share(frames[RNG.permutation(24)], frames) < 0.7


def test_clips_with_nothing_to_see_are_like_nobody():
    black = signatures(np.zeros((8, 60, 80, 3), np.uint8))
    assert contained_share(black, black) == 0
    assert contained_share(black, signatures(scenery(0, 10))) == 0


def test_pairs_come_in_order_and_name_the_copies():
    whole = signatures(scenery(4, 30))
    pairs = find_pairs([whole, signatures(scenery(5, 20)), whole[3:15]], 0.9)
    assert [(pair.a, pair.b) for pair in pairs] == [(0, 2)]


def test_no_sequences_give_no_pairs():
    assert find_pairs([], 0.5) == []


def test_among_many_moments_clusters_find_the_same_pairs(monkeypatch: pytest.MonkeyPatch):
    films = [signatures(scenery(seed, 60, step_px=4)) for seed in range(36)]
    films += [film[11:40] for film in films[::3]]
    exhaustive = [(pair.a, pair.b) for pair in find_pairs(films, 0.9)]
    monkeypatch.setattr("nemo_vfm.dedup.sequence._ALL_WITH_ALL", 1000)
    assert [(pair.a, pair.b) for pair in find_pairs(films, 0.9)] == exhaustive == [(3 * n, 36 + n) for n in range(12)]
