"""Defines a NeMo model of thirty numbers, configured by YAML, that fits a line; needs nemo-toolkit."""

import os
import signal

import torch
from nemo.core.classes import ModelPT
from torch.utils.data import DataLoader, TensorDataset


class Line(ModelPT):
    """Fits a line through points drawn from the section's seed; kills its process at `kill_at`, once."""

    def __init__(self, cfg, trainer=None):
        super().__init__(cfg, trainer)
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))

    def setup_training_data(self, train_data_config):
        generator = torch.Generator().manual_seed(train_data_config.seed)
        x = torch.randn(64, 4, generator=generator)
        self._train_dl = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=train_data_config.batch_size)

    def setup_validation_data(self, val_data_config):
        pass

    def training_step(self, batch, batch_idx):
        kill_at = os.environ.get("TOY_KILL_AT")
        if kill_at is not None and self.trainer.global_step == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    @classmethod
    def list_available_models(cls):
        return []
