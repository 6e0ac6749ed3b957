"""Tests that rows are filled with documents: nothing lost, nothing left empty, few documents cut."""

import numpy as np
import pytest

from nemo_vfm.data.tokens.row_filling import FilledRow, fill


def drawn(seed: int, tokens: int, longest: int) -> np.ndarray:
    """Lengths that add up to `tokens`."""
    lengths = np.clip(np.random.default_rng(seed).lognormal(5, 1, tokens).astype(np.int64), 1, longest)
    count = int(np.searchsorted(np.cumsum(lengths), tokens))
    return np.append(lengths[:count], tokens - lengths[:count].sum())


def covered(filled: FilledRow, lengths: np.ndarray) -> bool:
    """Whether the parts of each document follow one another from its first token to its last."""
    order = np.lexsort((filled.begins, filled.documents))
    documents, begins, parts = filled.documents[order], filled.begins[order], filled.lengths[order]
    ends = begins + parts
    first = np.append(True, documents[1:] != documents[:-1])
    return (
        bool((begins[first] == 0).all())
        and bool((begins[~first] == ends[:-1][~first[1:]]).all())
        and np.array_equal(ends[np.append(first[1:], True)], lengths)
    )


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_full_and_every_token_is_in_one(seed):
    size, num_rows = 512, 64
    lengths = drawn(seed, size * num_rows, 3 * size)
    filled = fill(lengths, num_rows, size)
    assert np.bincount(filled.rows, filled.lengths, num_rows).tolist() == [size] * num_rows
    assert covered(filled, lengths) and filled.lengths.min() >= 1


def test_where_there_are_fewer_tokens_than_room_nothing_is_cut_that_fits():
    lengths = np.array([60, 50, 40, 30, 10])
    filled = fill(lengths, 3, 100)
    assert covered(filled, lengths) and len(filled.rows) == 5


def test_each_goes_where_the_min_room_is_left():
    filled = fill(np.array([70, 60, 40, 30]), 2, 100)
    assert sorted(zip(filled.rows.tolist(), filled.lengths.tolist(), strict=True)) == [
        (0, 30),
        (0, 70),
        (1, 40),
        (1, 60),
    ]


def test_a_document_longer_than_a_row_fills_rows_and_leaves_a_rest():
    filled = fill(np.array([250]), 3, 100)
    assert filled.begins.tolist() == [0, 100, 200] and filled.lengths.tolist() == [100, 100, 50]


def test_few_of_the_documents_that_would_fit_are_cut():
    size, num_rows = 2048, 1024
    lengths = drawn(0, size * num_rows, size)
    filled = fill(lengths, num_rows, size)
    cut = np.bincount(filled.documents) > 1
    assert len(lengths) > 8000 and cut.mean() < 0.005


def test_no_rows_hold_nothing():
    assert len(fill(np.array([], np.int64), 0, 8).rows) == 0
