"""Tests what clusters, blocks and chains find and keep, the same every time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.dedup.cluster import clusters, num_clusters
from nemo_vfm.dedup.semantic import as_text, as_vectors, match


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def crowd() -> np.ndarray:
    """2,400 vectors around 100 places, 400 of them next to another one."""
    random = np.random.default_rng(0)
    places = random.normal(size=(100, 32))
    rows = places[random.integers(0, 100, 2000)] + 0.9 * random.normal(size=(2000, 32))
    copies = rows[random.integers(0, 2000, 400)] + 0.1 * random.normal(size=(400, 32))
    return unit(random.permutation(np.concatenate([rows, copies])))


@pytest.mark.parametrize("count", [5, 40])
def test_clusters_lose_no_copy_and_hardly_any_neighbour(crowd: np.ndarray, count: int):
    exhaustive, quick = match(crowd, count=1), match(crowd, count=count)
    for threshold, recall in ((0.95, 1.0), (0.7, 0.95)):
        there = exhaustive.cosine_N > threshold
        assert there.sum() > 300
        assert (quick.cosine_N[there] > threshold).mean() >= recall


def test_one_cluster_a_vector_would_lose_some(crowd: np.ndarray):
    alone = sum(len(members) for members in clusters(crowd, 40, nearest=1))
    assert alone == len(crowd)
    assert sum(len(members) for members in clusters(crowd, 40)) == 2 * len(crowd)


def test_the_same_vectors_and_seed_give_the_same_clusters(crowd: np.ndarray):
    first, again = clusters(crowd, 20, seed=3), clusters(crowd, 20, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, clusters(crowd, 20, seed=4), strict=False))


def test_there_is_a_cluster_for_a_thousand_vectors():
    assert [num_clusters(n) for n in (0, 999, 2500, 10**9)] == [1, 1, 2, 10_000]


def test_blocks_give_what_one_product_gives(crowd: np.ndarray):
    some = crowd[:1500]
    cosines = np.triu(some @ some.T, k=1) - 2 * np.tri(len(some))
    assert match(some, count=1).cosine_N[1:] == pytest.approx(cosines.max(axis=0)[1:], abs=1e-6)


def test_the_nearest_of_all_may_come_before_or_after(crowd: np.ndarray):
    some = crowd[:1500]
    others = some @ some.T - 2 * np.eye(len(some))
    assert match(some, count=1).nearest_N == pytest.approx(others.max(axis=0), abs=1e-6)


@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(0, 10), st.floats(0.3, 0.99))
def test_whoever_goes_refers_to_one_that_stays_and_no_two_alike_stay(count, seed, above):
    rows = unit(np.random.default_rng(seed).normal(size=(count, 3)))
    gone = match(rows).duplicates(above)
    assert all(kept not in gone and kept < item for item, kept in gone.items())
    stays = [item for item in range(count) if item not in gone]
    cosines = rows[stays] @ rows[stays].T
    np.fill_diagonal(cosines, -1)
    assert cosines.max(initial=-1) <= above + 1e-6


def test_a_short_vector_is_like_nobody():
    assert match(np.array([[0.1, 0], [0.1, 0], [1, 0]], np.float32)).nearest_N.max() == pytest.approx(0.1)


def test_one_vector_has_no_other():
    alone = match(unit(np.ones((1, 4))))
    assert (alone.nearest_N.tolist(), alone.duplicates(0.0)) == ([0.0], {})


def test_text_keeps_a_vector_to_three_digits(crowd: np.ndarray):
    back = as_vectors([as_text(row) for row in crowd[:5]])
    assert back == pytest.approx(crowd[:5], abs=1e-3)
    assert np.linalg.norm(back, axis=1).max() <= 1 + 1e-6


def test_a_vector_with_nan_is_refused():
    with pytest.raises(ValueError, match="finite"):
        as_text(np.array([np.nan], np.float32))


def test_of_two_vectors_that_point_apart_neither_has_anything_near():
    found = match(np.array([[1, 0], [-1, 0]], np.float32), count=1)
    assert found.nearest_N.tolist() == [-1.0, -1.0]
