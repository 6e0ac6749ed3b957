"""Tests that blocked cosines equal those of the whole matrix."""

import numpy as np
import pytest

from nemo_vfm.dedup.cluster import nearest


@pytest.fixture
def vectors():
    rows = np.random.default_rng(0).normal(size=(37, 5)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("rows", [1, 8, 37, 100])
def test_nearest_is_the_largest_cosine_to_another(vectors, rows):
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -9)
    assert np.allclose(nearest(vectors, rows=rows), cosines.max(axis=1), atol=1e-6)


def test_a_single_vector_is_like_nothing(vectors):
    assert nearest(vectors[:1]).tolist() == [0.0]
