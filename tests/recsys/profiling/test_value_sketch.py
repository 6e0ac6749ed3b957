"""Tests counts of distinct ids against sets, exact up to the limit and estimated beyond."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.recsys.profiling.log_measurements import ValueSketch
from nemo_vfm.recsys.profiling.profile_figures import icdf
from nemo_vfm.recsys.profiling.table_rows import TableRows


def sketch(values: Tensor, limit: int, size: int = 500) -> ValueSketch:
    found = ValueSketch(limit)
    for piece in values.split(size):
        found.add(piece)
    return found


def ids(seed: int, count: int = 4000) -> Tensor:
    numbers = torch.Generator().manual_seed(seed)
    return (torch.rand(count, generator=numbers) ** 4 * 3000).long() * 1009 + seed * 10**9 - 5 * 10**8


@pytest.mark.parametrize("over", [0, 1])
def test_up_to_the_limit_every_id_is_counted_and_one_more_makes_it_an_estimate(over):
    values = ids(0)
    counts = Counter(values.tolist())
    found = sketch(values, len(counts) - over)
    assert found.exact == (not over)
    if not over:
        assert found.as_json(0.95) == dict.fromkeys(("value", "low", "high"), len(counts)) | {"exact": True}
        assert sorted(found.counts_K.tolist()) == sorted(counts.values())


def test_estimates_are_unbiased_and_their_intervals_hold_the_number_about_as_often_as_they_say():
    errors, held = [], []
    for seed in range(100):
        values = ids(seed)
        distinct, found = len(values.unique()), sketch(values, 100)
        errors.append(found.distinct / distinct - 1)
        held.append(found.as_json(0.9)["low"] <= distinct <= found.as_json(0.9)["high"])
    assert abs(np.mean(errors)) < 0.03 and np.std(errors) == pytest.approx(0.1, rel=0.25)
    assert 0.8 < np.mean(held) < 0.98


def test_the_kept_ids_have_their_whole_counts_and_do_not_depend_on_the_pieces():
    # The last piece repeats all, among them the id with the largest kept hash.
    values = torch.cat([ids(3), ids(3).unique()])
    whole, found = sketch(values, 10**6, len(values)), sketch(values, 64, 97)
    assert found.counts_K.tolist() == whole.counts_K[:64].tolist()


def test_a_hash_occupies_the_rows_that_the_formula_expects():
    for rows in (500, 1000, 2000):
        values = torch.arange(1000) * 4096
        row = TableRows(rows, "mix64").of(values, "item")
        assert torch.equal(values, torch.arange(1000) * 4096), "the ids of the log stay as they are"
        assert int(row.min()) >= 0 and int(row.max()) < rows
        assert len(row.unique()) == pytest.approx(rows * -np.expm1(-1000 / rows), rel=0.06)
    assert len(TableRows(1024, "modulo").of(torch.arange(1000) * 4096, "item").unique()) == 1


def test_an_id_that_is_no_row_is_named():
    for bad in (-1, 10):
        with pytest.raises(DataError, match=f"item: the id {bad} is not in its table, which has the rows 0 to 9.*hash"):
            TableRows(10).of(torch.tensor([3, bad]), "item")


@pytest.mark.parametrize(
    ("counts", "at_half", "at_all"), [([0, 0, 0], 0, 0), ([5], 1, 1), ([1] * 100, 50, 100), ([0, 98, 1, 0, 1], 1, 3)]
)
def test_the_icdf_leaves_out_rows_without_lookups(counts, at_half, at_all):
    found = icdf(np.array(counts))
    assert len(found) == 101 and (found[0], found[50], found[100]) == (0, at_half, at_all)
    if len(counts) == 100:
        assert found.tolist() == list(range(101))
