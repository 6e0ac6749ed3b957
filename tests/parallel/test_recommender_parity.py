"""Tests that a model with embedding tables is tried in layouts, and that a missing sum of theirs is seen."""

from functools import partial

import pytest
import torch

from nemo_vfm.models.recommenders.dlrm import DLRM
from nemo_vfm.models.recommenders.hstu import HSTU
from nemo_vfm.parallel.plan.layout_cases import LayoutCase
from nemo_vfm.parallel.verify import parity
from nemo_vfm.parallel.verify.tiny_training import TinyTraining, rehearsal_of
from nemo_vfm.recsys.click import Click
from nemo_vfm.sparse.tables.row_optimizer import RowWiseAdaGrad
from tests.support.ranks import POOL
from tests.support.small_recommenders import small

pytestmark = pytest.mark.cluster  # several ranks

ranker = partial(
    DLRM, dense=3, bottom=[8, 4], top=[8], width=4, rows={"item": 9, "user": 5}, table_optimizer=RowWiseAdaGrad(0.1),
    num_labels=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def rehearsal() -> TinyTraining:
    task = Click(labels={"click": 1.0, "like": 0.5})
    return rehearsal_of(ranker, task, partial(torch.optim.SGD, lr=0.1), seed=3)[0]


@pytest.mark.parametrize("degrees", [{"replicate": 2}, {"shard": 2}, {"shard": 2, "microbatches": 2}], ids=str)
def test_layouts_of_ranks_that_share_samples_are_equal(rehearsal: TinyTraining, degrees: dict[str, int]) -> None:
    found = parity.row(POOL, rehearsal, LayoutCase(degrees), steps=3)
    assert found.verdict == "equal", found


def test_a_model_over_histories_and_their_times_is_equal() -> None:
    rehearsal = rehearsal_of(
        partial(small, HSTU), Click(labels={"click": 1.0, "like": 0.5}), partial(torch.optim.SGD, lr=0.1), seed=3
    )[0]
    found = parity.row(POOL, rehearsal, LayoutCase({"shard": 2}))
    assert found.verdict == "equal", found


def test_a_layout_that_splits_the_model_is_refused_with_the_reason(rehearsal: TinyTraining) -> None:
    found = parity.row(POOL, rehearsal, LayoutCase({"tensor": 2}))
    assert found.verdict == "refused" and "Use only parallel.replicate or parallel.shard" in found.reason


def test_the_control_is_seen(rehearsal: TinyTraining) -> None:
    assert parity.control(POOL, rehearsal, 2, is_cut=False).verdict == "seen"
