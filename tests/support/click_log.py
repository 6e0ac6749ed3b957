"""Trains a line over the dense features of a small log with two labels, one of them not always observed."""

import itertools
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.job import Run
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.recsys.click import Click
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.callbacks.predictions import WritePredictions
from nemo_vfm.train.callbacks.validation import Validate
from nemo_vfm.train.job import Train
from tests.support.slots import slots

BATCH, HELD_OUT = 16, 5


def batch(index: int) -> FeatureBatch:
    """Its teacher is a line; the fourth sample is a bad one, and of every fifth `like` was not observed."""
    rng = torch.Generator().manual_seed(index)
    dense_BF = torch.randn(BATCH, 3, generator=rng)
    teacher_B = (dense_BF @ torch.tensor([1.0, -2.0, 0.5])).sigmoid()
    labels = {name: (torch.rand(BATCH, generator=rng) < teacher_B).float() for name in ("click", "like")}
    ids_B, weight_B = torch.arange(BATCH) + BATCH * index, torch.ones(BATCH)
    labels["like"][::5] = math.nan
    labels["click"][3], weight_B[3] = 7.0, 0.0
    return FeatureBatch(index, ids_B, weight_B, dense_BF, {**labels, "teacher": teacher_B}, session_B=ids_B // 3)


class ClickLog:
    def __init__(self, held_out: int = HELD_OUT) -> None:
        self.held_out, self.readings = held_out, 0

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        self._first, self._rank, self._num_ranks = first_batch, rank, num_ranks

    def train_dataloader(self) -> Iterator[FeatureBatch]:
        return (batch(g).cut(self._num_ranks)[self._rank] for g in itertools.count(self._first))

    def val_dataloader(self) -> list[FeatureBatch]:
        """The last one is shorter."""
        self.readings += 1
        whole = [batch(1000 + n) for n in range(self.held_out)]
        return [*whole[:-1], whole[-1].rows(0, 7)] if whole else []

    def batches_per_epoch(self) -> float:
        return 4

    def num_train_samples(self) -> int:
        return 4 * BATCH


class Line(nn.Module):
    """A logistic regression for each label."""

    def __init__(self, num_labels: int = 1) -> None:
        super().__init__()
        self.line = nn.Linear(3, num_labels)

    def forward(self, batch: FeatureBatch) -> Tensor:
        """(B, L)."""
        result: Tensor = self.line(batch.dense_BF)
        return result


def job(labels: dict[str, float], *, replicate: int = 1, held_out: int = HELD_OUT, **settings: object) -> Train:
    """Eight steps, with a validation after four."""
    given: dict[str, object] = {
        "model": partial(Line, len(labels)), "data": ClickLog(held_out), "task": Click(labels=labels),
        "optimizer": partial(torch.optim.SGD, lr=0.3), "parallel": ParallelPlan(replicate=replicate),
        "checkpoint": SaveCheckpoints(every_steps=4, keep_last=None, asynchronous=False),
        "validation": Validate(every_steps=4, group="session", top_k=[1, 2]),
        "callbacks": {"predictions": WritePredictions()},
        "precision": Precision("fp32"),
    }  # fmt: skip
    return Train(**slots(duration=Duration.parse("8 steps"), **(given | settings)))


def trained(_: int, folder: Path, labels: dict[str, float], replicate: int) -> None:
    job(labels, replicate=replicate).run(Run(folder, seed=1))
