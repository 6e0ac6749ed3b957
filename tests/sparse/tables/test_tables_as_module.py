"""Tests that embedding tables behave as a part of a torch model."""

import pytest
import torch
from torch import Tensor, nn

from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowWiseAdaGrad
from nemo_vfm.sparse.tables.table_spec import TableSpec


class _Model(nn.Module):
    def __init__(self, rows: int = 5) -> None:
        super().__init__()
        specs = {"items": TableSpec(rows=rows, width=4, features=("item",)),
                 "users": TableSpec(rows=3, width=4, features=("user",), dtype="bf16")}  # fmt: skip
        self.tables = FusedTables(specs, RowWiseAdaGrad(lr=0.1), seed=7)
        self.head = nn.Linear(4, 1)


def _trained(model: _Model) -> Tensor:
    ids = Jagged(torch.tensor([1, 1, 4]), torch.tensor([2, 1]))
    model.head(model.tables.lookup({"item": ids})["item"]).sum().backward()
    model.tables.update(2.0)
    return model.state_dict()["tables.items.weight"]


def test_rows_are_in_the_state_dict_and_in_no_parameters() -> None:
    model = _Model()
    assert [name for name, _ in model.named_parameters()] == ["head.weight", "head.bias"]
    assert list(model.state_dict()) == ["tables.items.weight", "tables.users.weight", "head.weight", "head.bias"]


def test_a_state_dict_gives_the_rows_to_another_model() -> None:
    first, second = _Model(), _Model()
    trained = _trained(first)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.state_dict()["tables.items.weight"], trained)
    assert not torch.equal(trained, _Model().state_dict()["tables.items.weight"])


def test_a_state_dict_of_other_tables_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"tables.items.weight has shape \(6, 4\), here \(5, 4\)"):
        _Model().load_state_dict(_Model(rows=6).state_dict())
    state = _Model().state_dict()
    state["tables.shops.weight"] = state.pop("tables.users.weight")
    with pytest.raises(
        RuntimeError, match=r"Missing key.*tables.users.weight(.|\n)*Unexpected key.*tables.shops.weight"
    ):
        _Model().load_state_dict(state)


def test_tables_made_on_meta_get_their_first_rows_when_they_move() -> None:
    with torch.device("meta"):
        model = _Model()
    assert model.tables.state()["items.weight"].is_meta
    model.tables.to_empty(device="cpu")
    ready = _Model()
    for name, tensor in ready.tables.state().items():
        assert torch.equal(model.tables.state()[name], tensor), name
    model.head = ready.head
    assert torch.equal(_trained(model), _trained(ready))


def test_tables_that_move_between_steps_keep_their_rows_their_state_and_their_step() -> None:
    moved, stayed = _Model(), _Model()
    moved.head.load_state_dict(stayed.head.state_dict())
    for model in (moved, stayed):
        _trained(model)
    before = {name: tensor.clone() for name, tensor in moved.tables.state().items()}
    assert before["step"] == 1 and before["items.sum"].any()
    moved.to("cpu")
    for name, tensor in moved.tables.state().items():
        assert torch.equal(tensor, before[name]), name
    assert torch.equal(_trained(moved), _trained(stayed))


def test_the_dtype_of_a_model_is_not_that_of_its_tables() -> None:
    model = _Model().double()
    dtypes = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    assert dtypes["tables.items.weight"] == torch.float32 and dtypes["tables.users.weight"] == torch.bfloat16
