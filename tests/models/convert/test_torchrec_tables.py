"""Tests that rows and AdaGrad's sums go to TorchRec's names and back bit by bit."""

import pytest
import torch

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.torchrec_tables import load_torchrec, optimizer_to_torchrec, weights_to_torchrec
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_adam import RowAdam
from nemo_vfm.sparse.tables.row_optimizer import RowAdaGrad, RowSgd, RowWiseAdaGrad
from nemo_vfm.sparse.tables.table_spec import TableSpec

SPECS = {
    "t_item": TableSpec(rows=6, width=4, features=("item",)),
    "item": TableSpec(rows=5, width=4, features=("user",), dtype="bf16"),
}


def trained(optimizer, seed):
    tables = FusedTables(SPECS, optimizer, seed=seed)
    ids = Jagged(torch.tensor([1, 1, 4]), torch.tensor([2, 1]))
    vectors = tables.lookup({"item": ids, "user": ids})
    sum(one.square().sum() for one in vectors.values()).backward()
    tables.update(1.0)
    return tables


@pytest.mark.parametrize("collection", ["embedding_bags", "embeddings"])
@pytest.mark.parametrize("optimizer", [RowWiseAdaGrad(lr=0.1), RowAdaGrad(lr=0.1), RowSgd(lr=0.1)])
def test_tables_that_take_over_what_others_gave_hold_the_same_bits(optimizer, collection):
    first, second = trained(optimizer, 1), trained(optimizer, 2)
    weights = {f"model.{name}": one.clone() for name, one in weights_to_torchrec(first, collection).items()}
    sums = {name: one.clone() for name, one in optimizer_to_torchrec(first).items()}
    load_torchrec(second, weights | {"model.over.weight": torch.zeros(1)}, sums)
    assert all(torch.equal(one, second.state()[name]) for name, one in first.state().items())
    load_torchrec(second, weights, {name: one[:, None] if one.ndim == 1 else one for name, one in sums.items()})


def test_the_names_and_shapes_are_torchrecs():
    tables = trained(RowWiseAdaGrad(lr=0.1), 1)
    assert {name: tuple(one.shape) for name, one in weights_to_torchrec(tables).items()} == {
        "embedding_bags.t_item.weight": (6, 4), "embedding_bags.item.weight": (5, 4)}  # fmt: skip
    assert {name: tuple(one.shape) for name, one in optimizer_to_torchrec(tables).items()} == {
        "t_item.momentum1": (6,), "item.momentum1": (5,)}  # fmt: skip


def test_what_does_not_fit_is_refused_and_changes_nothing():
    tables = trained(RowWiseAdaGrad(lr=0.1), 1)
    before = {name: one.clone() for name, one in tables.state().items()}
    weights = {name: one + 1 for name, one in weights_to_torchrec(tables).items()}
    cases = [
        (
            DataError,
            "embedding_bags.item.weight is not in it",
            {"embedding_bags.t_item.weight": torch.zeros(6, 4)},
            None,
        ),
        (DataError, "is in it 2 times", weights | {"b.embeddings.item.weight": torch.zeros(5, 4)}, None),
        (ValueError, "shape", weights | {"embedding_bags.t_item.weight": torch.zeros(7, 4)}, None),
        (ValueError, "shape", weights, {"t_item.momentum1": torch.zeros(7), "item.momentum1": torch.zeros(5)}),
    ]
    for error, words, rows, sums in cases:
        with pytest.raises(error, match=words):
            load_torchrec(tables, rows, sums)
    assert all(torch.equal(one, tables.state()[name]) for name, one in before.items())
    with pytest.raises(ValueError, match="the state of RowAdam has no counterpart"):
        optimizer_to_torchrec(FusedTables(SPECS, RowAdam(lr=0.1)))
