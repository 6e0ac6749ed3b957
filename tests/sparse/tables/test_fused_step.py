"""Tests that a step does not depend on microbatches, order of features, threads or the order of samples."""

import pytest
import torch

from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables import row_kernels, row_storage
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_adam import RowAdam
from nemo_vfm.sparse.tables.row_optimizer import RowWiseAdaGrad
from nemo_vfm.sparse.tables.table_spec import TableSpec
from tests.support.random_features import random_jagged

BATCH, STEPS = 12, 3
SPECS = {
    "shared": TableSpec(9, 6, ("a", "b", "c"), "mean"),
    "history": TableSpec(9, 6, ("h",), "sequence"),
    "own": TableSpec(5, 6, ("d",)),
    "before": TableSpec(4, 4, ("j",), dtype="bf16"),
    "half": TableSpec(9, 4, ("e", "g"), dtype="bf16"),
    "alone": TableSpec(5, 3, ("i",)),
}
ROWS = {feature: spec.rows for spec in SPECS.values() for feature in spec.features}


def batch(step, size=BATCH, longest=6):
    return {
        feature: random_jagged(rows, size, 100 * step + place, longest, weighted=feature == "d")
        for place, (feature, rows) in enumerate(ROWS.items())
    }


def backward(tables, features, places_B=None):
    """A loss whose gradient of each sample depends on that sample alone."""
    sum((out**2).sum() for out in tables.lookup(features, places_B).values()).backward()


def trained(optimizer, step_of, specs=SPECS):
    tables = FusedTables(specs, optimizer, seed=3)
    for step in range(STEPS):
        step_of(tables, step)
        tables.update(float(BATCH))
    return tables.state()


def whole(tables, step):
    backward(tables, batch(step))


def require_equal(found, expected):
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("make", [lambda: RowWiseAdaGrad(0.1), lambda: RowAdam(0.1)])
def test_microbatches_give_the_bits_of_one_batch(make):
    def in_microbatches(tables, step):
        for begin, end in ((0, 5), (5, 6), (6, 12)):
            backward(tables, {feature: given.rows(begin, end) for feature, given in batch(step).items()})

    require_equal(trained(make(), in_microbatches), trained(make(), whole))


@pytest.mark.parametrize("with_places", [True, False])
def test_ranks_that_exchange_their_gradients_come_to_the_bits_of_one_batch(with_places):
    def on_rank(tables, step, parts):
        for begin, end in parts:
            features = {feature: given.rows(begin, end) for feature, given in batch(step).items()}
            backward(tables, features, torch.arange(begin, end) if with_places else None)

    ranks = [FusedTables(SPECS, RowAdam(0.1), seed=3) for _ in range(2)]
    for step in range(STEPS):
        on_rank(ranks[0], step, [(0, 4), (4, 7)])
        on_rank(ranks[1], step, [(7, 12)])
        sent = [*zip(*([storage.pack_pending() for storage in tables._storages] for tables in ranks), strict=True)]
        for tables in ranks:
            of_storages = iter(sent)
            tables.exchange(lambda own, of_storages=of_storages: next(of_storages))
            tables.update(float(BATCH))
    expected = trained(RowAdam(0.1), whole)
    for tables in ranks:
        require_equal(tables.state(), expected)


def test_the_order_of_backward_passes_changes_no_bit():
    def last_first(tables, step):
        losses = []
        for begin, end in ((0, 5), (5, 12)):
            features = {feature: given.rows(begin, end) for feature, given in batch(step).items()}
            losses.append(sum((out**2).sum() for out in tables.lookup(features).values()))
        losses[1].backward()
        losses[0].backward()

    require_equal(trained(RowWiseAdaGrad(0.1), last_first), trained(RowWiseAdaGrad(0.1), whole))


def test_permuted_samples_with_their_places_change_no_bit_and_without_them_do():
    def in_order(tables, step):
        backward(tables, batch(step), torch.arange(BATCH))

    def permuted(tables, step, with_places=True):
        order = torch.randperm(BATCH, generator=torch.Generator().manual_seed(step))
        for part in (order[:7], order[7:]):
            features = {feature: given.select(part) for feature, given in batch(step).items()}
            backward(tables, features, part if with_places else None)

    expected = trained(RowWiseAdaGrad(0.1), in_order)
    require_equal(trained(RowWiseAdaGrad(0.1), permuted), expected)
    require_equal(trained(RowWiseAdaGrad(0.1), whole), expected)  # without places, the order of arrival
    other = trained(RowWiseAdaGrad(0.1), lambda tables, step: permuted(tables, step, with_places=False))
    assert any(not torch.equal(other[name], expected[name]) for name in other)


def test_the_order_of_features_and_other_tables_change_no_bit():
    def reversed_features(tables, step):
        backward(tables, dict(reversed(batch(step).items())))

    expected = trained(RowWiseAdaGrad(0.1), whole)
    require_equal(trained(RowWiseAdaGrad(0.1), reversed_features), expected)

    def without_others(tables, step):
        backward(tables, {feature: batch(step)[feature] for feature in ("e", "g")})

    alone = trained(RowWiseAdaGrad(0.1), without_others, {"half": SPECS["half"]})
    require_equal(alone, {name: expected[name] for name in alone})


def test_any_number_of_threads_gives_the_same_bits():
    specs = {f"t{n}": TableSpec(3000, 32, (f"f{n}",), dtype="bf16" if n == 3 else "fp32") for n in range(4)}
    features = {f"f{n}": random_jagged(3000 if n else 40, 700, n, longest=12) for n in range(4)}

    def state(threads):
        torch.set_num_threads(threads)
        tables = FusedTables(specs, RowWiseAdaGrad(0.1))
        for step in range(2):
            backward(tables, features if step else {"f1": features["f1"]})
            norm = tables.squared_norm(7.0)
            tables.update(7.0)
        return {**tables.state(), "norm": norm}

    before = torch.get_num_threads()
    try:
        expected = state(1)
        for threads in (2, 5):
            require_equal(state(threads), expected)
    finally:
        torch.set_num_threads(before)


def test_a_refused_step_leaves_no_trace():
    def refused_first(tables, step):
        backward(tables, batch(step + 50))
        assert tables.squared_norm(1.0) > 0
        tables.forget()
        assert tables.squared_norm(1.0) == 0
        whole(tables, step)

    require_equal(trained(RowAdam(0.1), refused_first), trained(RowAdam(0.1), whole))


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_step_of_no_weight_is_refused_before_anything_changes(weight):
    tables = FusedTables(SPECS, RowWiseAdaGrad(0.1))
    before = {name: tensor.clone() for name, tensor in tables.state().items()}
    whole(tables, 0)
    with pytest.raises(ValueError, match="must be above 0 and finite"):
        tables.update(weight)
    require_equal(tables.state(), before)
    assert tables.squared_norm(1.0) > 0


def test_places_for_some_lookups_only_are_refused_before_anything_changes():
    tables = FusedTables(SPECS, RowWiseAdaGrad(0.1))
    before = {name: tensor.clone() for name, tensor in tables.state().items()}
    backward(tables, batch(0), torch.arange(BATCH))
    backward(tables, batch(1))
    with pytest.raises(ValueError, match="1 of 2 lookups"):
        tables.update(1.0)
    require_equal(tables.state(), before)
    with pytest.raises(ValueError, match="12 samples, but 3 places"):
        tables.lookup(batch(0), torch.arange(3))


def test_the_norm_shows_a_gradient_that_is_not_finite_and_changes_nothing():
    def looked_at(tables, step):
        whole(tables, step)
        assert tables.squared_norm(2.0).isfinite() and tables.squared_norm(2.0) > 0

    require_equal(trained(RowWiseAdaGrad(0.1), looked_at), trained(RowWiseAdaGrad(0.1), whole))
    tables = FusedTables(SPECS, RowWiseAdaGrad(0.1))
    (tables.lookup(batch(0))["d"] * float("inf")).sum().backward()
    assert not tables.squared_norm(2.0).isfinite()


def test_a_lookup_after_the_norm_counts():
    def looked_at(tables, step):
        for begin, end in ((0, 5), (5, 12)):
            backward(tables, {feature: given.rows(begin, end) for feature, given in batch(step).items()})
            tables.squared_norm(2.0)

    require_equal(trained(RowWiseAdaGrad(0.1), looked_at), trained(RowWiseAdaGrad(0.1), whole))


@pytest.mark.parametrize("make", [lambda: RowWiseAdaGrad(0.1), lambda: RowAdam(0.1)])
@pytest.mark.parametrize("with_numba", [True, False])
def test_a_norm_leaves_the_update_the_sums_alone_and_they_are_dropped_with_the_step(monkeypatch, make, with_numba):
    if not with_numba:
        monkeypatch.setattr(row_kernels, "numba_usable", lambda tensor: False)
    plain = {f"t{n}": TableSpec(40, 16, (f"f{n}",)) for n in range(3)}
    given = {f"f{n}": random_jagged(40, 200, n, longest=12) for n in range(3)}
    summed, sizes = row_storage.sum_bags, []
    monkeypatch.setattr(row_storage, "sum_bags", lambda *args: sizes.append(len(args[1])) or summed(*args))
    states, counts = [], []
    for looks in (0, 1):
        tables = FusedTables(plain, make(), seed=3)
        backward(tables, given)
        sizes.clear()
        for _ in range(looks):
            assert tables.squared_norm(7.0) > 0
        counts.append(sum(sizes))
        sizes.clear()
        tables.update(7.0)
        assert sum(sizes) <= 3 * 40 or not looks, "a row's sum is one value"
        states.append(tables.state())
        assert all(one is None for storage in tables._storages for one in storage._touched)
    assert counts[1] == sum(len(one.values_N) for one in given.values())
    require_equal(states[1], states[0])


@pytest.mark.parametrize("rows", [1, 14])
def test_blocks_of_tables_change_no_bit(monkeypatch, rows):
    expected = trained(RowWiseAdaGrad(0.1), whole)
    monkeypatch.setattr(row_storage, "_rows_of_a_block", lambda tensor: rows)
    require_equal(trained(RowWiseAdaGrad(0.1), whole), expected)


def test_a_long_batch_of_few_ids_is_updated_in_parts_as_in_one(monkeypatch):
    given = random_jagged(200, 300, 1)
    sparse = Jagged(given.values_N[::7] * 40, torch.tensor([len(given.values_N[::7])]))

    def step_of(tables, step):
        backward(tables, {"f": given if step else sparse})

    specs = {"t": TableSpec(8000, 6, ("f",))}
    expected = trained(RowWiseAdaGrad(0.1), step_of, specs)
    monkeypatch.setattr(row_storage, "_ROWS_AT_ONCE", 3)
    require_equal(trained(RowWiseAdaGrad(0.1), step_of, specs), expected)


def test_a_state_that_is_loaded_goes_on_with_the_same_bits():
    expected = trained(RowAdam(0.1), whole)
    first, second = (FusedTables(SPECS, RowAdam(0.1), seed=3) for _ in range(2))
    for step in range(STEPS):
        tables = first if step < 2 else second
        whole(tables, step)
        tables.update(float(BATCH))
        if step == 1:
            whole(second, 0)  # pending gradients of before must not be applied after
            second.load({name: tensor.clone() for name, tensor in first.state().items()})
    require_equal(second.state(), expected)


def test_the_state_of_others_is_refused_before_anything_changes():
    tables, others = FusedTables(SPECS, RowAdam(0.1)), FusedTables(SPECS, RowWiseAdaGrad(0.1))
    before = {name: tensor.clone() for name, tensor in tables.state().items()}
    with pytest.raises(ValueError, match=r"missing \['alone.exp_avg'"):
        tables.load(others.state())
    with pytest.raises(ValueError, match=r"own.weight is torch.float32 of shape \(4, 6\)"):
        tables.load({**{name: one + 1 for name, one in tables.state().items()}, "own.weight": torch.zeros(4, 6)})
    require_equal(tables.state(), before)


@pytest.mark.parametrize("feature", list(ROWS))
def test_gradients_are_finite_until_one_of_any_feature_is_not(feature):
    tables = FusedTables(SPECS, RowWiseAdaGrad(0.1), seed=3)
    assert tables.has_finite_gradients(), "none waits"
    backward(tables, batch(0))
    assert tables.has_finite_gradients()
    (tables.lookup({feature: batch(1)[feature]})[feature].sum() * float("nan")).backward()
    assert not tables.has_finite_gradients()
    tables.forget()
    assert tables.has_finite_gradients()
