"""Tests that a batch of features is cut, moved and trained on like any other, and stays exact when deduplicated."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.row_deduplication import deduplicate
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.job import Train
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.state.skip import Skip
from tests.support.jagged_rows import jagged, lists
from tests.train.test_job import lines


def batch(index: int = 0, deduped: bool = True, count: int = 8) -> FeatureBatch:
    """Samples of sessions of three; what a session has seen is the same in all of them."""
    ids = torch.arange(count) + count * index
    sessions = ids // 3
    items = jagged([[int(one) % 5] for one in ids])
    history = jagged([[*range(int(one) % 4)] for one in sessions])
    country = jagged([[int(one) % 3] for one in sessions])
    user = {"history": history, "country": country}
    groups = deduplicate(user, {"user": [*user]}) if deduped else {}
    plain = {"item": items} if deduped else {"item": items, **user}
    clicked = (ids % 5 + sessions) % 2.0
    return FeatureBatch(
        index, ids, torch.ones(count), torch.stack([ids, ids % 2], 1).float(), {"click": clicked}, plain, groups,
        sessions,
    )  # fmt: skip


def everything(found: FeatureBatch) -> dict[str, list]:
    whole = found.expand()
    features = {name: lists(rows) for name, rows in whole.features.items()}
    labels = {name: label.tolist() for name, label in whole.labels.items()}
    session = [] if whole.session_B is None else whole.session_B.tolist()
    return {"keys": [*whole.keys], "session": session, "weight": whole.weight_B.tolist(),
            "dense": whole.dense_BF.tolist(), **features, **labels}  # fmt: skip


def test_it_is_a_batch_with_keys_of_its_ids():
    found = batch(index=2)
    assert isinstance(found, Batch) and len(found) == 8
    assert found.keys == tuple(str(one) for one in range(16, 24)) and found.ids_B.dtype == torch.int64
    with pytest.raises(AttributeError):
        found.keys = ("a",)  # made of the ids, so it can be nothing else


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 20])
def test_parts_are_the_samples_in_order_and_each_holds_only_its_own_unique_rows(parts):
    whole = batch()
    pieces = whole.cut(parts)
    assert len(pieces) == min(parts, 8) and all(len(piece) for piece in pieces)
    found = [everything(piece) for piece in pieces]
    assert {name: [*itertools.chain(*(one[name] for one in found))] for name in found[0]} == everything(whole)
    for piece in pieces:
        piece.require_valid()
        assert piece.groups["user"].num_unique == len({one // 3 for one in piece.ids_B.tolist()})


def test_deduplicated_plain_and_selected_batches_are_the_same_samples():
    assert everything(batch()) == everything(batch(deduped=False)) == everything(batch().select(torch.arange(8)))
    assert batch().groups["user"].num_unique == 3 and not batch().expand().groups


def test_an_empty_batch_is_cut_into_itself():
    assert [everything(piece) for piece in batch(count=0).cut(4)] == [everything(batch(count=0))]


def test_moving_changes_every_tensor_and_no_sample():
    moved = batch().to("meta")
    assert moved.session_B is not None
    tensors = [moved.ids_B, moved.weight_B, moved.dense_BF, moved.labels["click"], moved.session_B,
               moved.features["item"].values_N,
               moved.groups["user"].inverse_B, moved.groups["user"].features["history"].lengths_B]  # fmt: skip
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert everything(batch().to("cpu")) == everything(batch())


def test_a_skipped_sample_weighs_nothing():
    left = Skip(samples=["6", "3", "100"]).zero_weights(batch())
    assert isinstance(left, FeatureBatch) and left.weight_B.tolist() == [1, 1, 1, 0, 1, 1, 0, 1]
    assert everything(replace(left, weight_B=torch.ones(8))) == everything(batch())


BAD = {
    "batch 4: click has 2 samples, but the batch has 8": {"labels": {"click": torch.zeros(2)}},
    "batch 4: weight_B has 7 samples": {"weight_B": torch.ones(7)},
    "batch 4: user has 1 samples": {"groups": {"user": DedupedGroup({"a": jagged([[1]])}, torch.tensor([0]))}},
    "item: row 1 has the id 3, but its table has the rows 0 to 2": {},
    "item: the lengths of 8 rows add up to 9": {
        "features": {"item": Jagged(torch.zeros(8), torch.tensor([2, 1, 1, 1, 1, 1, 1, 1]))}
    },
    "country: row 0 has the id -1": {
        "groups": {"user": DedupedGroup({"country": jagged([[-1]])}, torch.zeros(8, dtype=torch.int64))},
        "features": {},
    },
}  # fmt: skip


@pytest.mark.parametrize("sentence", BAD)
def test_bad_batches_are_named(sentence):
    with pytest.raises(DataError, match=sentence):
        replace(batch(4), **BAD[sentence]).require_valid({"item": 3, "country": 3})


class Log:
    def __init__(self, deduped: bool) -> None:
        self.deduped = deduped

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        self._first, self._rank, self._num_ranks = first_batch, rank, num_ranks

    def train_dataloader(self) -> Iterator[FeatureBatch]:
        return (batch(g, self.deduped).cut(self._num_ranks)[self._rank] for g in itertools.count(self._first))

    def val_dataloader(self) -> list[FeatureBatch]:
        return [batch(1000, self.deduped)]

    def batches_per_epoch(self) -> float:
        return 4

    def num_train_samples(self) -> int:
        return 32


class Sums(nn.Module):
    """Sums of embeddings of all features of a sample, and a line over the dense ones."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.line = nn.Embedding(8, 4), nn.Linear(2, 1)

    def forward(self, values_N: Tensor, rows_N: Tensor, dense_BF: Tensor) -> Tensor:
        pooled = torch.zeros(len(dense_BF), 4).index_add(0, rows_N, self.table(values_N))
        result: Tensor = pooled.prod(1) + self.line(dense_BF / 100).squeeze(1)
        return result


class Clicked:
    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        assert isinstance(batch, FeatureBatch)
        features = batch.expand().features
        rows = [torch.repeat_interleave(torch.arange(len(batch)), one.lengths_B) for one in features.values()]
        values = torch.cat([one.values_N for one in features.values()])
        inputs = {"values_N": values, "rows_N": torch.cat(rows), "dense_BF": batch.dense_BF}
        return ModelInputs(inputs, {"click": batch.labels["click"]}, batch.weight_B)

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(output, prepared.targets["click"], reduction="none")


def test_it_trains_in_microbatches_deduplicated_and_plain_with_the_same_losses(tmp_path: Path):
    found = []
    for name, deduped, microbatches in (("plain", False, 1), ("deduped", True, 1), ("cut", True, 3)):
        job = Train(model=Sums, task=Clicked(), data=Log(deduped), optimizer=partial(torch.optim.SGD, lr=0.1),
                    loop=Loop(duration=Duration.parse("4 steps"), checkpoint=SaveCheckpoints(keep_last=None)),
                    parallel=ParallelPlan(microbatches=microbatches),
                    callbacks={"skip": Skip(samples=["12"])})  # fmt: skip
        job.run(Run(tmp_path / name, seed=1))
        found.append(torch.tensor([line["loss"] for line in lines(tmp_path / name)]))
    assert len(found[0]) == 4 and len(set(found[0].tolist())) == 4
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])
