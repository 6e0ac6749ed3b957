"""Tests that stochastic rounding has no bias, and that its bits are a function of seed, table, row, column and step."""

import math

import pytest
import torch

from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables import counter_hash, row_storage
from nemo_vfm.sparse.tables.counter_hash import round_stochastically
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowSgd
from nemo_vfm.sparse.tables.table_spec import DTYPES, TableSpec

SMALL = [torch.bfloat16, torch.float16]
NUMBERS = [1.0013, -0.7341, 3.99999, 1e-3, 33.3, 7.1e-6, -3.3e-7, 2.0**-14 * 0.99999, 1e-8]


def bits(rows, width, step=1, salt=5):
    return counter_hash.column_bits(counter_hash.row_keys(torch.full((rows,), salt), torch.arange(rows), step), width)


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("number", NUMBERS)
def test_rounding_gives_both_neighbours_and_the_number_on_average(dtype, number):
    x = torch.full((2000, 64), number)
    found = round_stochastically(x, dtype, bits(2000, 64)).double()
    nearest = torch.tensor(number).to(dtype)
    neighbours = {float(torch.nextafter(nearest, torch.tensor(to, dtype=dtype))) for to in (-math.inf, math.inf)}
    assert set(found.unique().tolist()) <= {float(nearest), *neighbours} and len(found.unique()) == 2
    low, high = found.min(), found.max()
    exact = float(torch.tensor(number).double())
    share = (exact - float(low)) / float(high - low)
    assert 0 < share < 1
    error = abs(float((found == high).double().mean()) - share)
    assert error < 5 * math.sqrt(share * (1 - share) / found.numel()) + 2.0**-13  # 13 bits, for fp16


@pytest.mark.parametrize("dtype", SMALL)
def test_numbers_that_fit_stay_as_they_are(dtype):
    codes = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    every = codes.view(dtype).reshape(-1, 64)
    found = round_stochastically(every.float(), dtype, bits(*every.shape))
    same = (found.view(torch.int16) == every.view(torch.int16)) | (found.isnan() & every.isnan())
    assert same.all()


@pytest.mark.parametrize("dtype", SMALL)
def test_what_is_no_number_stays_none(dtype):
    codes = torch.tensor([2**31 - 1, -1], dtype=torch.int32)  # NaNs of which a carry would make zeros
    found = round_stochastically(torch.cat([codes.view(torch.float32), torch.tensor([math.inf, -math.inf])]), dtype,
                                 torch.full((4,), -1, dtype=torch.int32))  # fmt: skip
    assert found[:2].isnan().all() and found[2:].tolist() == [math.inf, -math.inf]


def test_bits_differ_by_step_row_column_and_table_and_look_random():
    first = bits(512, 64)
    for other in (bits(512, 64, step=2), bits(512, 64, salt=6), first.roll(1, 0), first.roll(1, 1)):
        differing = torch.stack([((first ^ other) >> place) & 1 for place in range(32)]).double().mean((1, 2))
        assert (differing - 0.5).abs().max() < 5 * 0.5 / math.sqrt(first.numel())
    assert len(first.unique()) > 0.999 * first.numel()
    assert torch.equal(first[100:200], counter_hash.column_bits(
        counter_hash.row_keys(torch.full((100,), 5), torch.arange(100, 200), 1), 64))  # fmt: skip


def test_updates_far_below_the_spacing_of_bf16_add_up():
    tables = FusedTables({"t": TableSpec(400, 8, ("f",), dtype="bf16", initial_scale=0.0)}, RowSgd(1.0))
    tables.state()["t.weight"].fill_(1.0)
    ids = Jagged(torch.arange(400), torch.ones(400, dtype=torch.int64))
    for _ in range(100):
        (-tables.lookup({"f": ids})["f"] * 1e-4).sum().backward()  # a fortieth of half a spacing
        tables.update(1.0)
    assert abs(float(tables.state()["t.weight"].float().mean()) - 1.01) < 1e-3
    assert float((torch.tensor(1.0, dtype=torch.bfloat16) + 1e-4).float()) == 1.0


def test_each_number_is_rounded_by_draws_of_its_own_in_every_step():
    """A quarter of the spacing, 16 times: drawn anew, each number has moved up about 4 times, give or take 1.7."""
    rows, width, steps, share = 128, 128, 16, 0.25
    tables = FusedTables({"t": TableSpec(rows, width, ("f",), dtype="bf16", initial_scale=0.0)}, RowSgd(1.0))
    tables.state()["t.weight"].fill_(1.0)
    ids = Jagged(torch.arange(rows), torch.ones(rows, dtype=torch.int64))
    for _ in range(steps):
        (-tables.lookup({"f": ids})["f"] * share * 2.0**-7).sum().backward()
        tables.update(1.0)
    moves_RD = (tables.state()["t.weight"].float() - 1) * 2**7
    variance = steps * share * (1 - share)
    assert float(moves_RD.mean()) == pytest.approx(steps * share, rel=0.01)
    assert float(moves_RD.var()) == pytest.approx(variance, rel=0.05)
    for axis in (0, 1):  # numbers that share their draws move together, which a sum of them shows
        assert float(moves_RD.sum(axis).var()) == pytest.approx(variance * moves_RD.shape[axis], rel=0.5)


@pytest.mark.parametrize(("given", "largest"), [(None, 0.1), (0.0, 0.0), (0.5, 0.5)])
def test_rows_begin_within_the_scale_that_is_given_zero_included(given, largest):
    tables = FusedTables({"t": TableSpec(100, 64, ("f",), initial_scale=given)}, RowSgd(1.0))
    assert float(tables.state()["t.weight"].abs().max()) == pytest.approx(largest, rel=0.01)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_made_in_parts_begin_as_in_one(monkeypatch, dtype):
    specs = {name: TableSpec(50, 8, (name,), dtype=dtype) for name in ("a", "b")}
    whole = FusedTables(specs, RowSgd(1.0)).state()
    monkeypatch.setattr(row_storage, "_INITIAL_ROWS_AT_ONCE", 7)
    parts = FusedTables(specs, RowSgd(1.0)).state()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_begin_uniform_in_their_interval_and_differ_by_table_and_seed(dtype):
    def rows(seed):
        names = {name: TableSpec(3000, 16, (name,), dtype=dtype, initial_scale=0.5) for name in ("a", "b")}
        return FusedTables(names, RowSgd(1.0), seed).state()

    state, other = rows(0), rows(1)
    values = state["a.weight"].float()
    assert values.abs().max() <= 0.5 and abs(values.mean()) < 5 * 0.5 / math.sqrt(3 * 48000)
    assert values.var() == pytest.approx(0.25 / 3, rel=0.03)
    assert not torch.equal(values, state["b.weight"].float()) and not torch.equal(values, other["a.weight"].float())
    if dtype == "fp32":
        assert len(values.unique()) > 0.99 * values.numel()
