# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that recommenders give the same loss and gradients on unique rows as on the expanded batch."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from nemo_vfm.models.recommenders.dlrm import DLRM
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.tables.row_optimizer import RowSgd
from nemo_vfm.sparse.tables.table_spec import TableSpec
from tests.support.session_batches import ROWS, session_batch

SEQUENCES = {
    "items": TableSpec(rows=50, width=8, features=("item", "history"), pooling="sequence"),
    "others": TableSpec(rows=9, width=8, features=("country", "device")),
}


def dlrm(deduplicated, **given):
    sizes = {"dense": 3, "bottom": [16, 8], "top": [16], "num_labels": 2, "width": 8}
    return DLRM(**sizes | ({"rows": ROWS} if "tables" not in given else {}) | given,
                table_optimizer=RowSgd(lr=1.0), deduplicated=deduplicated)  # fmt: skip


CASES: dict[str, Callable[[], nn.Module]] = {
    "dlrm not at all": lambda: dlrm(None),
    "dlrm lookup": lambda: dlrm({"user": "lookup"}),
    "dlrm pool": lambda: dlrm({"user": "pool"}, self_interaction=True),
    "dlrm of sequences lookup": lambda: dlrm({"user": "lookup"}, tables=SEQUENCES),
    "dlrm of sequences pool": lambda: dlrm({"user": "pool"}, tables=SEQUENCES),
}


def outcome(make: Callable[[], nn.Module], batch: FeatureBatch, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Loss, dense gradients, and what one step of plain descent at rate 1 took from the rows: their gradients."""
    torch.manual_seed(5)
    model = make().to(dtype)
    before = {name: rows.clone() for name, rows in model.tables.state().items()}
    logits = model(batch)
    weights = torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype).view_as(logits)
    loss = (logits * weights).square().sum() + logits.sum()
    loss.backward()
    model.tables.update(1.0)
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(grad is not None for grad in found.values()), "a parameter without a gradient"
    rows = {name: before[name] - after for name, after in model.tables.state().items() if name.endswith("weight")}
    return {"loss": loss.detach(), "logits": logits.detach(), **found, **rows}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradients_on_unique_rows_are_those_of_the_expanded_batch(case, dtype):
    batch = session_batch()
    own, expanded = (outcome(CASES[case], one, dtype) for one in (batch, batch.expanded()))
    assert own["logits"].dtype == dtype
    for name, tensor in expanded.items():
        scale = float(tensor.abs().max())
        assert scale > 0, f"{name} has no gradient"
        torch.testing.assert_close(own[name], tensor, rtol=1e-5, atol=1e-5 * scale, msg=f"{case}: {name}")
