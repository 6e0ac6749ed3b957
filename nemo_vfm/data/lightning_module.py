# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Shard data in, the same as a LightningDataModule out, for a Trainer of your own."""

from lightning.pytorch import LightningDataModule

from nemo_vfm.core.types import Batch, TrainingData


class ShardDataModule(LightningDataModule):
    """Hands Lightning the batches of any training data, from global batch `first_batch` on.

    Its state is the number of batches given; a Trainer saves and loads it.

    Args:
        data: where batches come from.
        seed: of the order.
        first_batch: number of the first global batch.
    """

    def __init__(self, data: TrainingData, *, seed: int, first_batch: int = 0) -> None:
        super().__init__()
        self.data, self.seed, self.first_batch = data, seed, first_batch

    def setup(self, stage: str) -> None:
        """Open the shards."""
        self.data.start(seed=self.seed, first_batch=self.first_batch)

    def train_dataloader(self) -> object:
        """Batches without end: give the Trainer `limit_train_batches` or `max_steps`."""
        return self.data.train_dataloader()

    def val_dataloader(self) -> object:
        """The held-out batches."""
        return self.data.val_dataloader()

    def state_dict(self) -> dict[str, int]:
        """The number of the next global batch, counted in optimizer steps of the Trainer."""
        steps = self.trainer.global_step if self.trainer is not None else 0
        return {"next_batch": self.first_batch + steps}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on at the saved batch."""
        self.first_batch = state_dict["next_batch"]

    def transfer_batch_to_device(self, batch: Batch, device: object, dataloader_idx: int) -> Batch:
        """A Batch moves itself."""
        return batch.to(device)  # type: ignore[arg-type]
