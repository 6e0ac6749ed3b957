"""Reads training batches from any LightningDataModule, so that a resume finds the same batch again."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from nemo_vfm.core import ranks
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.training_data import LightningData


@no_component
class LightningBatches:
    """Training data in the words of `TrainingData`.

    What the loader draws at random follows from the seed and the number of the batch, so the order is the same after a
    resume. Where that falls into the middle of an epoch, its first batches are read again and dropped.

    Args:
        module: gives the loaders.
    """

    def __init__(self, module: LightningData) -> None:
        self.module, self._name = module, type(module).__name__
        self._loader: Iterable[Batch] | None = None

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        """See `TrainingData.start`."""
        self._seed, self._first, self._rank, self._num_ranks = seed, first_batch, rank, num_ranks
        if self._loader is None:
            from nemo_vfm.parallel.ranks.process_group import first_says

            if ranks.is_first():
                self.module.prepare_data()
            first_says("prepared")
            self.module.setup("fit")
            self._loader = self.module.train_dataloader()

    def train_dataloader(self) -> Iterator[Batch]:
        """See `TrainingData.train_dataloader`; this rank's slice of each."""
        length = _len(self._loader)
        index = self._first // length * length if length else 0
        assert self._loader is not None
        while True:
            batches, before = iter(self._loader), index
            while True:
                with torch.random.fork_rng(devices=[]):
                    seed = derive(self._seed, "lightning data", index)
                    torch.manual_seed(seed)
                    random.seed(seed)
                    np.random.seed(seed % 2**32)
                    found = next(batches, None)
                if found is None:
                    break
                if not isinstance(found, Batch):
                    raise UserError(f"{self._name} yields a {type(found).__name__}, but training takes nemo_vfm.core."
                                    f"types.Batch; the job LightningFit takes batches of any kind")  # fmt: skip
                batch, index = replace(found, index=index), index + 1
                if batch.index < self._first:
                    continue
                pieces = batch.cut(self._num_ranks)
                if len(pieces) < self._num_ranks:
                    raise UserError(
                        f"{self._name} yields a batch of {len(batch)} samples, which cannot be divided among "
                        f"{self._num_ranks} data ranks"
                    )
                yield pieces[self._rank]
            if index == before:
                raise UserError(f"{self._name} yields no batch")

    def val_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.val_dataloader`; none where the module has no such loader."""
        from lightning.pytorch.utilities.model_helpers import is_overridden

        if not is_overridden("val_dataloader", self.module):
            return
        for number, batch in enumerate(self.module.val_dataloader()):
            yield replace(batch, index=number)

    def batches_per_epoch(self) -> float:
        """See `TrainingData.batches_per_epoch`. UserError if its loader has no length."""
        if not (length := _len(self._loader)):
            raise UserError(f"the loader of {self._name} has no length; give the duration in steps")
        return length

    def num_train_samples(self) -> int:
        """See `TrainingData.num_train_samples`. UserError if its data set has no length."""
        if not (count := _len(getattr(self._loader, "dataset", None))):
            raise UserError(f"the data set of {self._name} has no length; give the duration in steps")
        return count


def _len(of: Any) -> int:
    """Of something that may have none, which is 0 then."""
    try:
        return len(of)
    except TypeError:
        return 0
