"""Tests that tables learn the same with numba's kernels as with torch's, with any number of threads."""

import pytest
import torch

from nemo_vfm.sparse.tables import row_kernels
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowSgd, RowWiseAdaGrad
from nemo_vfm.sparse.tables.table_spec import TableSpec
from tests.support.installed import skip_without
from tests.support.random_features import random_jagged

skip_without("numba")


def learned(optimizer, weighted=False, clip=None, width=9):
    tables = FusedTables({"t": TableSpec(40, width, ("f",)), "u": TableSpec(7, width, ("g",))}, optimizer, seed=1)
    for step in range(20):
        features = {"f": random_jagged(40, 16, step, 9, weighted), "g": random_jagged(7, 16, 50 + step, 9)}
        sum((out**2).sum() for out in tables.lookup(features).values()).backward()
        tables.update(16.0, clip)
    return tables.state()


def in_torch(monkeypatch, *args):
    with monkeypatch.context() as patch:
        patch.setattr(row_kernels, "numba_usable", lambda tensor: False)
        return learned(*args)


@pytest.mark.parametrize(
    ("weighted", "clip", "width"),
    [(False, None, 9), (True, None, 9), (False, 0.25, 9), (True, 0.25, 9), (False, None, 3), (True, 0.25, 64)],
)
def test_row_wise_adagrad_is_that_of_torch(monkeypatch, weighted, clip, width):
    expected = in_torch(monkeypatch, RowWiseAdaGrad(0.1), weighted, clip, width)
    for name, tensor in learned(RowWiseAdaGrad(0.1), weighted, clip, width).items():
        torch.testing.assert_close(tensor, expected[name], rtol=2e-5, atol=1e-6)


def test_the_sort_changes_no_bit(monkeypatch):
    expected = in_torch(monkeypatch, RowSgd(0.1))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in learned(RowSgd(0.1)).items())


@pytest.mark.parametrize("weighted", [False, True])
def test_threads_change_no_bit(weighted):
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(learned(RowWiseAdaGrad(0.1), weighted))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


@pytest.mark.parametrize("rows", [6, 60])
def test_values_of_a_row_stay_in_the_order_of_their_bags(rows):
    keys_N, offsets = torch.tensor([2, 0, 2, 2, 4]), torch.tensor([0, 2, 2, 4, 5])
    found = row_kernels.sorted_by_row(keys_N, offsets, None, rows, with_places=True)
    assert [one.tolist() for one in found] == [[0, 2, 4], [0, 1, 4, 5], [0, 0, 2, 2, 3], [1, 0, 2, 3, 4]]
    found = row_kernels.sorted_by_row(keys_N, offsets, torch.tensor([3, 2, 1, 0]), rows, with_places=True)
    assert [one.tolist() for one in found] == [[0, 2, 4], [0, 1, 4, 5], [0, 2, 2, 0, 3], [1, 2, 3, 0, 4]]


@pytest.mark.parametrize("rows", [1, 2, 2048, 12_000, 12_001, 1 << 22, (1 << 22) + 1, (1 << 31) - 1])
def test_rows_of_any_number_are_sorted_as_by_torch(rows):
    keys_N = torch.randint(0, rows, (3000,), generator=torch.Generator().manual_seed(rows)) // 3 * 3
    keys_N[:2] = torch.tensor([rows - 1, 0])
    rows_U, bounds, bags_N, order_N = row_kernels.sorted_by_row(keys_N, torch.arange(3001), None, rows, True)
    assert torch.equal(order_N, keys_N.sort(stable=True).indices) and torch.equal(bags_N, order_N)
    unique, counts = keys_N.unique(return_counts=True)
    assert torch.equal(rows_U, unique) and torch.equal(bounds.diff(), counts)
