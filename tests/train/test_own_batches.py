"""Tests that a batch of a user's own kind trains as ours do, in microbatches and resumed."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from safetensors.torch import load_file
from torch import Tensor, nn

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.sample_batches import PackedBatch, TokenBatch, VideoBatch
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.job import Train
from nemo_vfm.train.state.skip import Skip
from tests.support.slots import slots
from tests.train.test_job import StepsTaken, lines


@dataclass
class Clicks:
    """Which user saw which item, and whether they clicked."""

    index: int
    keys: tuple[str, ...]
    weight_B: Tensor
    ids_B2: Tensor
    clicked_B: Tensor

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, parts: int) -> "list[Clicks]":
        each = len(self) // parts
        return [self._rows(slice(part * each, (part + 1) * each)) for part in range(parts)]

    def to(self, device: Any) -> "Clicks":
        named = ("weight_B", "ids_B2", "clicked_B")
        return replace(self, **{name: getattr(self, name).to(device) for name in named})

    def _rows(self, rows: slice) -> "Clicks":
        return replace(
            self, keys=self.keys[rows], weight_B=self.weight_B[rows], ids_B2=self.ids_B2[rows],
            clicked_B=self.clicked_B[rows],
        )  # fmt: skip


class Seen:
    """Batch g holds samples 8g..8g+7; a click follows from the parity of both ids."""

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        self._first, self._rank, self._num_ranks = first_batch, rank, num_ranks

    def train_dataloader(self) -> Iterator[Clicks]:
        return (clicks(g).cut(self._num_ranks)[self._rank] for g in itertools.count(self._first))

    def val_dataloader(self) -> Iterable[Clicks]:
        return [clicks(1000)]

    def batches_per_epoch(self) -> float:
        return 4

    def num_train_samples(self) -> int:
        return 32


def clicks(g: int) -> Clicks:
    """Global batch g."""
    ids = torch.stack([torch.arange(8) + g, 3 * torch.arange(8) + 5 * g], dim=1) % 16
    return Clicks(g, tuple(f"{g}-{place}" for place in range(8)), torch.ones(8), ids, ids.sum(1) % 2.0)


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(16, 4), nn.Embedding(16, 4)

    def forward(self, ids_B2: Tensor) -> Tensor:
        result: Tensor = (self.user(ids_B2[:, 0]) * self.item(ids_B2[:, 1])).sum(1)
        return result


class Click:
    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        assert isinstance(batch, Clicks)
        return ModelInputs({"ids_B2": batch.ids_B2}, {"clicked": batch.clicked_B}, batch.weight_B)

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        clicked = prepared.targets["clicked"]
        return nn.functional.binary_cross_entropy_with_logits(output, clicked, reduction="none")


class ByLightning(LightningDataModule):
    """Four of the batches, by a loader of their own."""

    def train_dataloader(self) -> list[Clicks]:
        return [clicks(g) for g in range(4)]


def train(duration: str, **more: Any) -> Train:
    adamw, every_4 = partial(torch.optim.AdamW, lr=0.05), SaveCheckpoints(every_steps=4, keep_last=None)
    settings = slots(duration=Duration.parse(duration), **{"data": Seen(), "checkpoint": every_4, **more})
    return Train(model=Tables, task=Click(), optimizer=adamw, **settings)


def test_only_dataclasses_with_the_batchs_methods_are_batches() -> None:
    tokens, one = torch.zeros(1, 4), torch.ones(1)
    ours = [TokenBatch(0, ("a",), one, tokens, tokens), VideoBatch(0, ("a",), one, ("",), one),
            PackedBatch(0, ("a",), one, ("",), one, latents_XC=tokens, sizes_THW=((1, 1, 1),)), clicks(0)]  # fmt: skip
    assert all(isinstance(batch, Batch) for batch in ours)
    assert not isinstance(tokens, Batch) and not isinstance({"index": 0, "keys": (), "weight_B": tokens}, Batch)


def test_it_is_trained_on_and_resumed_bit_by_bit(tmp_path: Path) -> None:
    train("12 steps").run(Run(tmp_path / "one", seed=1))
    train("4 steps").run(Run(tmp_path / "two", seed=1))
    taken = StepsTaken()
    train("12 steps", callbacks={"taken": taken}).run(Run(tmp_path / "two", seed=1))
    assert taken.steps == [*range(5, 13)]
    one, two = (weights(tmp_path / name) for name in ("one", "two"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_it_learns(tmp_path: Path) -> None:
    train("96 steps").run(Run(tmp_path, seed=1))
    losses = [line["loss"] for line in lines(tmp_path)]
    assert sum(losses[-16:]) < 0.5 * sum(losses[:16])


def test_microbatches_and_a_lightning_data_module_give_the_same_losses(tmp_path: Path) -> None:
    ways: dict[str, dict[str, Any]] = {
        "whole": {}, "cut": {"parallel": ParallelPlan(microbatches=2)}, "lightning": {"data": ByLightning()},
    }  # fmt: skip
    for name, how in ways.items():
        train("4 steps", **how).run(Run(tmp_path / name, seed=1))
    found = {name: [line["loss"] for line in lines(tmp_path / name)] for name in ways}
    assert found["lightning"] == found["whole"]
    torch.testing.assert_close(torch.tensor(found["cut"]), torch.tensor(found["whole"]))


def test_a_left_out_sample_weighs_nothing() -> None:
    skipped = Skip(samples=["0-3"]).zero_weights(clicks(0))
    assert isinstance(skipped, Clicks) and skipped.weight_B.tolist() == [1, 1, 1, 0, 1, 1, 1, 1]


def weights(folder: Path) -> dict[str, Tensor]:
    """Of the last checkpoint, and the optimizer's state."""
    files = sorted((folder / "checkpoints/step-00000012").glob("*.safetensors"))
    return {f"{file.stem}/{name}": tensor for file in files for name, tensor in load_file(file).items()}
