"""Measures the mean and deviation of each latent channel of an autoencoder, and keeps them with its weights.

A diffusion model needs latents of deviation 1, and those of an autoencoder may have any other. The numbers are
measured, not learnt: for the weights of each checkpoint, and separately for the averaged weights.
Shape letters: B batch, C channels, N latent positions.
"""

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from nemo_vfm.core import log
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.models.autoencoder import CausalAutoencoder, split
from nemo_vfm.train.reconstruct.reconstruction_quality import reconstruct
from nemo_vfm.train.state.train_state import TrainState

_BATCHES = 8


class MeasureLatents:
    """Sets latent_mean, latent_std and latent_count, on held-out clips, before a checkpoint is written.

    Where no clip is held out they are measured on the first batches of the training, with a message.

    Args:
        every_steps: optimizer steps between measurements; there is always one at the end. Checkpoints at other steps
            hold older numbers, so let loop.checkpoint.every_steps be a multiple.
    """

    def __init__(self, *, every_steps: int = 1000) -> None:
        if every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, got {every_steps}")
        self.every_steps = every_steps

    def on_step(self, fit: TrainState) -> None:
        """Measure where due."""
        if not fit.is_due(self.every_steps):
            return
        own = _measure(fit, average=False)
        if fit.ema is not None:
            fit.ema.replace(_measure(fit, average=True))
        fit.model.load_state_dict(own, strict=False)


def _clips(fit: TrainState) -> Iterator[Batch]:
    """What is held out, the same on every rank; otherwise a little of what is learnt from."""
    held_out = False
    for batch in fit.data.val_dataloader():
        held_out = True
        yield batch
    if not held_out:
        if fit.plan.data > 1:
            raise UserError("no clip is held out, and on several devices latents are measured on those; set "
                            "data.val_fraction")  # fmt: skip
        log.warn_once("no clip is held out, so the latents' scale is measured on training clips")
        yield from islice(iter(fit.data.train_dataloader()), _BATCHES)


def _measure(fit: TrainState, *, average: bool) -> dict[str, Tensor]:
    """Mean and deviation over all positions of all held-out samples that count, in fp64."""
    count, total, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for prepared, output in reconstruct(fit, _clips(fit), average=average):
        model, video = fit.model, prepared.targets["video"]
        assert isinstance(model, CausalAutoencoder)
        mean_BM = split(output, video)[1][prepared.weight_B > 0]
        shape = len(mean_BM), model.latent_channels, mean_BM.shape[1] // model.latent_channels
        latents_CN = mean_BM.double().reshape(shape).transpose(0, 1).flatten(1).cpu()
        count += latents_CN.shape[1]
        total, squares = total + latents_CN.sum(dim=1), squares + latents_CN.square().sum(dim=1)
    mean = total / max(count, 1)
    std = (squares / max(count, 1) - mean.square()).clamp_min(0).sqrt()
    # A channel that never moves says nothing; dividing by its rounding errors would make noise of them.
    std = torch.where(std < 1e-6, torch.ones_like(std), std)
    return {"latent_mean": mean.float(), "latent_std": std.float(), "latent_count": torch.tensor(count)}
