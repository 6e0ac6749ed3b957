"""Wraps training data as a LightningDataModule."""

from lightning.pytorch import LightningDataModule

from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.training_data import TrainingData


class BatchModule(LightningDataModule):
    """Hands Lightning the batches of training data that its owner has started.

    It keeps no state of its own: which batch comes next is the number of optimizer steps, and that is in the
    checkpoint already. Validation is not Lightning's, so there is no validation loader here.

    Args:
        data: where batches come from; started.
    """

    def __init__(self, data: TrainingData) -> None:
        super().__init__()
        self.data = data

    def train_dataloader(self) -> object:
        """Batches without end: give the Trainer `limit_train_batches`."""
        return self.data.train_dataloader()

    def transfer_batch_to_device(self, batch: Batch, device: object, dataloader_idx: int) -> Batch:
        """A Batch moves itself, and the engine asks it to: Lightning must not copy it field by field."""
        return batch
