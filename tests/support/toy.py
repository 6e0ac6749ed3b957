"""Defines a regression small enough to reason about: y = W x with noise from (seed, batch, key)."""

import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.core.types.task import ModelInputs

WIDTH = 4


class ToyData:
    """Batch g holds samples 4g..4g+3 of an endless list; three fixed batches are held out."""

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        self._seed, self._first, self._rank, self._num_ranks = seed, first_batch, rank, num_ranks

    def train_dataloader(self) -> Iterator[Batch]:
        return (self._batch(g).cut(self._num_ranks)[self._rank] for g in itertools.count(self._first))

    def val_dataloader(self) -> Iterable[Batch]:
        return [self._batch(10_000 + i) for i in range(3)]

    def batches_per_epoch(self) -> float:
        return 2.5

    def num_train_samples(self) -> int:
        return 10

    def _batch(self, g: int) -> VideoBatch:
        x = torch.randn(4, WIDTH, 1, 1, 1, generator=generator(self._seed, "x", g))
        keys = tuple(f"s{4 * g + i}" for i in range(4))
        return VideoBatch(g, keys, torch.ones(4), keys, torch.full((4,), 8.0), latents_BCTHW=x)


class ToyTask:
    """Predict twice the input from a noised one."""

    def prepare(self, batch: VideoBatch, *, seed: int, training: bool) -> ModelInputs:
        assert batch.latents_BCTHW is not None
        x = batch.latents_BCTHW.flatten(1)
        drawn = [torch.rand((), generator=generator(seed, batch.index, key)) for key in batch.keys]
        noise = torch.stack(drawn).to(x.device)
        return ModelInputs({"x": x + 0.1 * noise[:, None]}, {"y": 2 * x}, batch.weight_B, {"noise": noise})

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        return (output - prepared.targets["y"]).square().mean(1)


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x)
        return result
