"""Tests every row optimizer against plain loops over rows, and against torch where torch has it."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_adam import RowAdam, RowLamb
from nemo_vfm.sparse.tables.row_optimizer import RowAdaGrad, RowSgd, RowWiseAdaGrad
from nemo_vfm.sparse.tables.table_spec import TableSpec
from tests.support.random_features import random_jagged

ROWS, WIDTH, BATCH, STEPS, LR = 12, 5, 9, 20, 0.1


def sgd(w, g, state, t, decay):
    """One row as a list; no tensor operation is shared with the code under test."""
    return [x - LR * (d + decay * x) for x, d in zip(w, g, strict=True)]


def adagrad(w, g, state, t, decay, mode="l2"):
    w, g = decayed(w, g, decay, mode)
    m = state["m"] = [a + d * d for a, d in zip(state.get("m", [0.0] * WIDTH), g, strict=True)]
    return [x - LR * d / (math.sqrt(a) + 1e-8) for x, d, a in zip(w, g, m, strict=True)]


def row_wise(w, g, state, t, decay, mode="l2"):
    w, g = decayed(w, g, decay, mode)
    state["m"] = state.get("m", 0.0) + sum(d * d for d in g) / WIDTH
    return [x - LR / (math.sqrt(state["m"]) + 1e-8) * d for x, d in zip(w, g, strict=True)]


def decayed(w, g, decay, mode):
    if mode == "l2":
        return w, [d + decay * x for x, d in zip(w, g, strict=True)]
    return [x * (1 - LR * decay) for x in w], g


def moments(g, state, t):
    m = state["m"] = [0.9 * a + 0.1 * d for a, d in zip(state.get("m", [0.0] * WIDTH), g, strict=True)]
    v = state["v"] = [0.99 * a + 0.01 * d * d for a, d in zip(state.get("v", [0.0] * WIDTH), g, strict=True)]
    return [a / (1 - 0.9**t) / (math.sqrt(b / (1 - 0.99**t)) + 1e-8) for a, b in zip(m, v, strict=True)]


def adam(w, g, state, t, decay):
    return [x * (1 - LR * decay) - LR * u for x, u in zip(w, moments(g, state, t), strict=True)]


def adam_l2(w, g, state, t, decay):
    return adam(w, [d + decay * x for x, d in zip(w, g, strict=True)], state, t, 0.0)


def lamb(w, g, state, t, decay):
    u = [d + decay * x for x, d in zip(w, moments(g, state, t), strict=True)]
    trust = math.hypot(*w) / math.hypot(*u)
    return [x - LR * trust * d for x, d in zip(w, u, strict=True)]


CASES = {
    "sgd": (lambda decay: RowSgd(LR, decay), sgd),
    "adagrad": (lambda decay: RowAdaGrad(LR, weight_decay=decay), adagrad),
    "row-wise adagrad": (lambda decay: RowWiseAdaGrad(LR, weight_decay=decay), row_wise),
    "decoupled row-wise": (lambda decay: RowWiseAdaGrad(LR, weight_decay=decay, weight_decay_mode="decoupled"),
                           partial(row_wise, mode="decoupled")),
    "decoupled adagrad": (lambda decay: RowAdaGrad(LR, weight_decay=decay, weight_decay_mode="decoupled"),
                          partial(adagrad, mode="decoupled")),
    "adam": (lambda decay: RowAdam(LR, (0.9, 0.99), weight_decay=decay), adam),
    "adam with l2": (lambda decay: RowAdam(LR, (0.9, 0.99), weight_decay=decay, weight_decay_mode="l2"), adam_l2),
    "lamb": (lambda decay: RowLamb(LR, (0.9, 0.99), 1e-8, decay), lamb),
}  # fmt: skip


def one_table(optimizer, rows=ROWS, pooling="sum"):
    return FusedTables({"t": TableSpec(rows, WIDTH, ("f",), pooling)}, optimizer)


def by_loops(rows, features, targets, weights, rule, decay):
    """Rows after all steps: gradients summed occurrence by occurrence in float64, then one update a touched row."""
    rows, states = rows.double().tolist(), [{} for _ in rows]
    for step, (jagged, target_BD) in enumerate(zip(features, targets, strict=True), 1):
        sums = {}
        bags = target_BD.double().tolist()
        for bag, ids in enumerate(jagged.values_N.split(jagged.lengths_B.tolist())):
            for row in ids.tolist():
                sums.setdefault(row, [0.0] * WIDTH)
                sums[row] = [a + b for a, b in zip(sums[row], bags[bag], strict=True)]
        for row, total in sums.items():
            rows[row] = rule(rows[row], [x / weights for x in total], states[row], step, decay)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("name", CASES)
def test_rows_equal_a_plain_loop_after_20_steps_with_duplicates(name, decay):
    make, rule = CASES[name]
    tables = one_table(make(decay))
    begin = tables.state()["t.weight"].clone()
    features = [random_jagged(ROWS if step % 2 else ROWS // 2, BATCH, step) for step in range(STEPS)]
    targets = [torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step)) for step in range(STEPS)]
    for jagged, target_BD in zip(features, targets, strict=True):
        (tables.lookup({"f": jagged})["f"] * target_BD).sum().backward()
        tables.update(float(BATCH))
    expected = by_loops(begin, features, targets, BATCH, rule, decay)
    assert any(len(jagged.values_N.unique()) < len(jagged.values_N) for jagged in features)
    assert (tables.state()["t.weight"] - expected).abs().max() <= 1e-6
    assert (expected - begin).abs().max() > 0.1  # something moved


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RowAdaGrad(LR, 1e-10), lambda rows: torch.optim.Adagrad(rows, LR, eps=1e-10)),
        # Its eps is not corrected for bias; a small one makes no difference.
        (RowAdam(LR, eps=1e-14), lambda rows: torch.optim.SparseAdam(rows, LR, eps=1e-14)),
        (RowSgd(LR), lambda rows: torch.optim.SGD(rows, LR)),
    ],
)
def test_rows_equal_those_of_torch_with_sparse_gradients(ours, theirs):
    tables = one_table(ours, pooling="mean")
    bag = nn.EmbeddingBag(ROWS, WIDTH, mode="mean", sparse=True)
    with torch.no_grad():
        bag.weight.copy_(tables.state()["t.weight"])
    optimizer = theirs(list(bag.parameters()))
    for step in range(STEPS):
        jagged = random_jagged(ROWS, BATCH, step)
        target_BD = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))
        (tables.lookup({"f": jagged})["f"] * target_BD).sum().backward()
        tables.update(1.0)
        optimizer.zero_grad()
        (bag(jagged.values_N, jagged.offsets[:-1]) * target_BD).sum().backward()
        optimizer.step()
    assert torch.allclose(tables.state()["t.weight"], bag.weight, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_rows_that_nobody_looked_up_keep_every_bit_of_row_and_state(name):
    tables = one_table(CASES[name][0](0.01), rows=64)
    for step in range(4):  # a full range of rows, and single ones
        before = {key: tensor.clone() for key, tensor in tables.state().items()}
        jagged = random_jagged(20 if step % 2 else 64, 3 if step % 2 else 11, step)
        tables.lookup({"f": jagged})["f"].square().sum().backward()
        tables.update(1.0)
        untouched = torch.ones(64, dtype=torch.bool)
        untouched[jagged.values_N] = False
        after = tables.state()
        assert untouched.any() and all(torch.equal(after[key][untouched], before[key][untouched])
                                       for key in after if key != "step")  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_factor_of_a_schedule_multiplies_the_learning_rate(name):
    make = CASES[name][0]
    once, scaled = one_table(make(0.01)), one_table(replace(make(0.01), lr=LR / 4))
    for tables, factor in ((once, 0.25), (scaled, 1.0)):
        tables.lookup({"f": random_jagged(ROWS, BATCH, 0)})["f"].square().sum().backward()
        tables.update(1.0, lr_factor=factor)
    assert torch.equal(once.state()["t.weight"], scaled.state()["t.weight"])


def test_a_row_of_zeros_begins_to_move_under_lamb():
    tables = FusedTables({"t": TableSpec(3, 4, ("f",), initial_scale=0.0)}, RowLamb(LR))
    tables.lookup({"f": random_jagged(3, 5, 0)})["f"].sum().backward()
    tables.update(1.0)
    assert tables.state()["t.weight"].isfinite().all() and tables.state()["t.weight"].any()


@pytest.mark.parametrize("make", [RowAdaGrad, RowWiseAdaGrad, RowAdam, RowLamb])
def test_settings_that_would_give_nan_are_refused(make):
    with pytest.raises(ValueError, match=r"eps 0\.0 must be above 0"):
        make(LR, eps=0.0)
