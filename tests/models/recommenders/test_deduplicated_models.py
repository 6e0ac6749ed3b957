"""Tests that recommenders give the same loss and gradients on unique rows as on the expanded batch."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from nemo_vfm.models.recommenders.dcn_v2 import DCNv2
from nemo_vfm.models.recommenders.din import DIN
from nemo_vfm.models.recommenders.dlrm import DLRM
from nemo_vfm.models.recommenders.history_transformer import HistoryTransformer
from nemo_vfm.models.recommenders.hstu import HSTU
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.tables.made_up_batch import FeatureSizes, made_up_batch
from nemo_vfm.sparse.tables.table_spec import TableSpec
from tests.support.session_batches import ROWS, session_batch
from tests.support.small_recommenders import maker

SEQUENCES = {
    "items": TableSpec(rows=50, width=8, features=("item", "history"), pooling="sequence"),
    "others": TableSpec(rows=9, width=8, features=("country", "device")),
}


CASES: dict[str, Callable[[], nn.Module]] = {
    "DLRM not at all": maker(DLRM),
    "DLRM lookup": maker(DLRM, deduplicated={"user": "lookup"}),
    "DLRM pool": maker(DLRM, deduplicated={"user": "pool"}, self_interaction=True),
    "DLRM of sequences lookup": maker(DLRM, deduplicated={"user": "lookup"}, tables=SEQUENCES),
    "DLRM of sequences pool": maker(DLRM, deduplicated={"user": "pool"}, tables=SEQUENCES),
    "DCNv2 pool": maker(DCNv2, deduplicated={"user": "pool"}),
    **{
        f"{kind.__name__} {stage or 'not at all'}": maker(kind, deduplicated=stage and {"user": stage})
        for kind in (DIN, HistoryTransformer, HSTU)
        for stage in (None, "lookup", "pool", "attend")
        if (kind, stage) != (DIN, "attend")
    },
    "HSTU without times": maker(HSTU, deduplicated={"user": "attend"}, times=None),
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
    own, expanded = (outcome(CASES[case], one, dtype) for one in (batch, batch.expand()))
    assert own["logits"].dtype == dtype
    for name, tensor in expanded.items():
        scale = float(tensor.abs().max())
        assert scale > 0, f"{name} has no gradient"
        near = 1e-5 if tensor.dtype == torch.float32 else 1e-10
        torch.testing.assert_close(own[name], tensor, rtol=near, atol=near * scale)


@pytest.mark.parametrize("kind", [DLRM, DCNv2, DIN, HistoryTransformer, HSTU])
def test_every_model_takes_batches_that_are_made_up_for_it(kind: type[nn.Module]) -> None:
    model = maker(kind)()
    sizes = FeatureSizes.of(model, ("click",))
    assert sizes is not None and sizes.dense == 3 and sizes.rows.items() >= ROWS.items()
    batch = made_up_batch(sizes, 0, range(8), torch.ones(8), seed=1)
    assert model(batch).shape == (8, 2) and len({*batch.features["item"].lengths_B.tolist()}) > 1


@pytest.mark.parametrize("case", CASES)
def test_a_batch_without_samples_has_no_logits_and_gradients_of_zero(case):
    model = CASES[case]()
    for batch in (none := session_batch().rows(0, 0), none.expand()):
        logits = model(batch)
        assert logits.shape == (0, 2)
        logits.sum().backward()
    assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)
