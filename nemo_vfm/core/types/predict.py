"""Computes a model's predictions for a batch of its task. Every caller that predicts uses this function."""

import torch
from torch import Tensor, nn

from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.task import Predicts


@torch.no_grad()
def predictions(model: nn.Module, task: Predicts, batch: Batch) -> Tensor:
    """(B, T, K), float32, on the batch's device; the model is left in the mode in which it came."""
    training = model.training
    model.eval()
    try:
        prepared = task.prepare(batch, seed=0, training=False)
        return task.predict(model(**prepared.inputs).float(), prepared)
    finally:
        model.train(training)
