"""Tests lookups and their gradients against torch's embeddings, and what they say of bad input."""

import pytest
import torch
import torch.nn.functional as F

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowSgd
from nemo_vfm.sparse.tables.table_spec import TableSpec
from tests.support.jagged_rows import jagged
from tests.support.random_features import random_jagged

DTYPES = {"fp32": 0.0, "bf16": 1e-6, "fp16": 1e-6}
SPECS = {
    "items": TableSpec(30, 8, ("clicked", "bought")),
    "ages": TableSpec(7, 8, ("age",), "mean"),
    "history": TableSpec(30, 8, ("history",), "sequence"),
    "wide": TableSpec(11, 16, ("place",)),
}


def batch(weighted=False):
    rows = {"place": 11, "history": 30, "age": 7, "bought": 30, "clicked": 30}
    return {
        feature: random_jagged(count, 6, seed, weighted=weighted and feature != "history")
        for seed, (feature, count) in enumerate(rows.items())
    }


def by_torch(tables, feature, given):
    """The same vectors by torch's functions, of fp32 copies of the rows."""
    name, spec = next((name, spec) for name, spec in SPECS.items() if feature in spec.features)
    rows = tables.state()[f"{name}.weight"].float()
    if spec.pooling == "sequence":
        return F.embedding(given.values_N, rows)
    bounds = given.offsets[:-1]
    out = F.embedding_bag(given.values_N, rows, bounds, mode="sum", per_sample_weights=given.weights_N)
    return out / given.lengths_B.clamp(min=1)[:, None] if spec.pooling == "mean" else out


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_are_those_of_torch(dtype, weighted):
    specs = {name: TableSpec(one.rows, one.width, one.features, one.pooling, dtype) for name, one in SPECS.items()}
    tables, features = FusedTables(specs, RowSgd(1.0)), batch(weighted)
    out = tables.lookup(features)
    assert list(out) == list(features)
    for feature, given in features.items():
        assert out[feature].dtype == torch.float32
        assert torch.allclose(out[feature], by_torch(tables, feature, given), rtol=1e-6, atol=1e-6), feature
    assert not out["clicked"][features["clicked"].lengths_B == 0].any()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_update_is_the_gradient_of_torch(weighted):
    tables, features = FusedTables(SPECS, RowSgd(1.0)), batch(weighted)
    copies = {name: tables.state()[f"{name}.weight"].clone().requires_grad_() for name in SPECS}

    class Copies:
        def state(self):
            return {f"{name}.weight": copy for name, copy in copies.items()}

    sum((by_torch(Copies(), feature, given) ** 3).sum() for feature, given in features.items()).backward()
    sum((out**3).sum() for out in tables.lookup(features).values()).backward()
    assert tables.squared_norm(2.0) == pytest.approx(sum(float((c.grad / 2).square().sum()) for c in copies.values()))
    tables.update(2.0, clip_factor=0.5)
    for name, copy in copies.items():
        assert torch.allclose(tables.state()[f"{name}.weight"], copy - copy.grad / 4, atol=1e-6), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_reach_the_weights_of_values(dtype):
    spec = {"t": TableSpec(9, 4, ("f",), "mean", dtype)}
    tables, given = FusedTables(spec, RowSgd(1.0)), random_jagged(9, 5, 1, weighted=True)
    ours, theirs = given.weights_N.clone().requires_grad_(), given.weights_N.clone().requires_grad_()
    tables.lookup({"f": Jagged(given.values_N, given.lengths_B, ours)})["f"].square().sum().backward()
    rows = tables.state()["t.weight"].float()
    out = F.embedding_bag(given.values_N, rows, given.offsets[:-1], mode="sum", per_sample_weights=theirs)
    (out / given.lengths_B.clamp(min=1)[:, None]).square().sum().backward()
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-6) and theirs.grad.any()


def test_many_values_of_bf16_are_summed_in_parts_without_a_difference():
    specs = {dtype: TableSpec(50, 4, (dtype,), dtype=dtype) for dtype in ("fp32", "bf16")}
    tables, given = FusedTables(specs, RowSgd(1.0)), random_jagged(50, 9000, 0, longest=9)
    state = tables.state()
    state["fp32.weight"].copy_(state["bf16.weight"])
    out = tables.lookup({"fp32": given, "bf16": given})
    assert len(given.values_N) > 2 * 2**14 and torch.equal(out["fp32"], out["bf16"])


def test_samples_without_any_id_and_batches_without_samples_give_zeros_and_change_nothing():
    tables = FusedTables(SPECS, RowSgd(1.0))
    before = {name: tensor.clone() for name, tensor in tables.state().items()}
    for rows in ([[], []], []):
        out = tables.lookup({"clicked": jagged(rows), "history": jagged(rows)})
        assert out["clicked"].shape == (len(rows), 8) and not out["clicked"].any() and out["history"].shape == (0, 8)
        sum(one.sum() for one in out.values()).backward()
    tables.update(1.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in tables.state().items() if name != "step")


def test_without_gradients_nothing_waits():
    tables = FusedTables(SPECS, RowSgd(1.0))
    with torch.no_grad():
        assert not tables.lookup(batch())["clicked"].requires_grad
    tables.lookup(batch())
    assert tables.squared_norm(1.0) == 0


@pytest.mark.parametrize(
    ("feature", "given", "error", "message"),
    [
        ("age", jagged([[1], [2, 7]]), DataError, "age: row 1 has the id 7, but its table has the rows 0 to 6"),
        ("age", jagged([[-1]]), DataError, "age: row 0 has the id -1"),
        ("age", Jagged(torch.tensor([1]), torch.tensor([-1, 2])), DataError, "age: row 0 has length -1"),
        ("age", Jagged(torch.tensor([1]), torch.tensor([2])), DataError, "add up to 2, but there are 1"),
        ("age", Jagged(torch.tensor([0.5]), torch.tensor([1])), ValueError, "age: ids are torch.float32"),
        ("ages", jagged([[1]]), ValueError, "'ages': did you mean 'age'"),
        ("history", random_jagged(5, 3, 0, weighted=True), ValueError, "history: a sequence has no sum to weigh"),
    ],
)
def test_bad_input_is_named(feature, given, error, message):
    tables = FusedTables(SPECS, RowSgd(1.0))
    with pytest.raises(error, match=message):
        tables.lookup({feature: given})


def test_bad_tables_are_named():
    with pytest.raises(ValueError, match="'f' belongs to the tables 'a' and 'b'"):
        FusedTables({"a": TableSpec(1, 1, ("f",)), "b": TableSpec(2, 1, ("f",))}, RowSgd(1.0))
    for wrong in ({"rows": 0}, {"features": ()}, {"features": ("f", "f")}, {"pooling": "max"}, {"dtype": "int8"}):
        with pytest.raises(ValueError):
            TableSpec(**{"rows": 1, "width": 1, "features": ("f",), **wrong})
