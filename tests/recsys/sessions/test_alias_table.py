"""Tests that the alias method draws every rank with its own probability."""

import pytest
import torch

from nemo_vfm.recsys.sessions.id_popularity import ZipfMandelbrot
from nemo_vfm.recsys.sessions.random_stream import AliasTable

NUMBERS = torch.Generator().manual_seed(0)
CASES = {
    "one rank": torch.ones(1),
    "all alike": torch.ones(7),
    "one has nearly all": torch.tensor([1e9, 1.0, 1.0, 1.0]),
    "some have none": torch.tensor([0.0, 3.0, 0.0, 1.0, 0.0]),
    "any order": torch.rand(1_000, generator=NUMBERS),
    "skewed, any order": torch.rand(501, generator=NUMBERS) ** 9,
    "zipf": ZipfMandelbrot(exponent=1.05).probabilities(10_000),
    "steep": ZipfMandelbrot(exponent=3.0, heavy_hitters=[0.3, 0.3]).probabilities(100),
}


@pytest.mark.parametrize("case", CASES)
def test_columns_and_aliases_hold_exactly_the_probabilities(case):
    wanted = CASES[case].double() / CASES[case].double().sum()
    table = AliasTable(wanted)
    mass = table.kept_R.clone().index_add_(0, table.alias_R, 1 - table.kept_R) / len(wanted)
    assert torch.allclose(mass, wanted, rtol=1e-9, atol=1e-12)
    assert bool(((table.kept_R >= 0) & (table.kept_R <= 1)).all())


def test_numbers_spread_evenly_draw_ranks_in_proportion():
    wanted = ZipfMandelbrot(exponent=1.2).probabilities(50)
    uniform = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    drawn = AliasTable(wanted).draw(uniform).bincount(minlength=50).double() / 200_000
    assert torch.allclose(drawn, wanted, atol=1e-4)


def test_the_ends_of_the_unit_interval_are_ranks():
    table = AliasTable(ZipfMandelbrot().probabilities(1_000))
    ranks = table.draw(torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64))
    assert bool(((ranks >= 0) & (ranks < 1_000)).all())
