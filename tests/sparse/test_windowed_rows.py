"""Tests that windows of a buffer give the rows back and store each run of overlapping rows once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse import windowed_rows
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.windowed_rows import to_windows
from tests.support.jagged_rows import jagged, lists

ROWS = st.lists(st.lists(st.integers(0, 1), max_size=5), max_size=9)


def merged(rows):
    """The buffer, with the longest overlap found by trying all."""
    buffer = []
    for before, row in zip([[], *rows], rows, strict=False):
        sizes = range(min(len(before), len(row)), -1, -1)
        longest = next(size for size in sizes if before[len(before) - size :] == row[:size])
        buffer += row[longest:]
    return buffer


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_the_rows_come_back_and_the_buffer_holds_each_longest_overlap_once(rows):
    found = to_windows(jagged(rows))
    assert lists(found.to_jagged()) == rows
    assert found.buffer_K.tolist() == merged(rows)


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_colliding_hashes_store_more_and_change_nothing(rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windowed_rows, "mix64_", torch.zero_)  # all slices have the hash 0
        found = to_windows(jagged(rows))
    assert lists(found.to_jagged()) == rows


def test_a_history_that_shifts_by_one_stores_one_value_a_sample():
    clicks = torch.arange(1000, 1200).tolist()
    rows = [clicks[max(0, end - 48) : end] for end in range(len(clicks) + 1)]
    found = to_windows(jagged(rows))
    assert found.buffer_K.tolist() == clicks and found.starts_B.tolist() == [max(0, end - 48) for end in range(201)]
    assert found.stored_over_read == 200 / sum(map(len, rows))
    assert lists(found.to_jagged()) == rows


def test_long_rows_overlap_whatever_their_place():
    values = torch.randint(-(2**63), 2**63 - 1, (9000,), generator=torch.Generator().manual_seed(1))
    rows = [values[:4000].tolist(), values[1000:7000].tolist(), values[6999:].tolist()]
    assert torch.equal(to_windows(jagged(rows)).buffer_K, values)


def test_nothing_is_stored_of_no_rows_and_of_empty_ones():
    assert to_windows(jagged([])).stored_over_read == 1
    assert lists(to_windows(jagged([[], []])).to_jagged()) == [[], []]


def test_weights_and_negative_lengths_are_refused():
    with pytest.raises(ValueError, match="rows with weights cannot be windows"):
        to_windows(Jagged(torch.arange(1), torch.tensor([1]), torch.ones(1)))
    with pytest.raises(DataError, match="row 1 has length -1"):
        to_windows(Jagged(torch.arange(1), torch.tensor([2, -1])))
