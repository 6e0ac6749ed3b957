"""Trains an autoencoder to reconstruct a batch of pixels: its inputs and the loss of each sample.

Shape letters: B batch, C channels, T frames, H height, W width, N numbers of a sample.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.models.autoencoder import split
from nemo_vfm.train.reconstruct.loss_terms import Pixels, Term, divergence


class Reconstruct:
    """The task of an autoencoder.

    There is no adversarial term: a discriminator's weights under the same optimizer would be trained to help where they
    should oppose. A task of your own with `turn_losses` has one, with an optimizer for each side.

    Args:
        terms: what the loss is added up from, by name.
        kl: factor on the KL divergence from the standard normal, per number of the latents. For an autoencoder that is
            not variational it is half the mean square of the latents, which only keeps them small.

    Raises:
        ValueError: a negative kl, or no terms.
    """

    def __init__(self, *, terms: Mapping[str, Term] = MappingProxyType({"pixels": Pixels()}), kl: float = 0.0) -> None:
        if not 0 <= kl < torch.inf:
            raise ValueError(f"kl must be finite and not negative, got {kl}")
        if not terms:
            raise ValueError("terms is empty, so there is no loss; add one such as Pixels")
        self.terms: dict[str, Term] = dict(terms)
        self.kl = kl

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        """Pixels in [-1, 1]; in training also each sample's seed of the latents' noise, whatever its companions."""
        if not isinstance(batch, VideoBatch) or batch.video_BCTHW is None:
            raise UserError("an autoencoder trains on pixels, but these shards hold latents; use shards of clips, "
                            "and set buckets")  # fmt: skip
        video_BCTHW = batch.video_BCTHW.float() / 127.5 - 1
        inputs = {"video_BCTHW": video_BCTHW}
        if training:
            seeds = [derive(seed, "training", batch.index, key) for key in batch.keys]
            inputs["seeds_B"] = torch.tensor(seeds, dtype=torch.int64)  # on the CPU, where the noise is drawn
        return ModelInputs(inputs, {"video": video_BCTHW}, batch.weight_B)

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """The sum of the terms, (B,)."""
        return torch.stack(list(self.parts(output, prepared).values())).sum(dim=0)

    def parts(self, output: Tensor, prepared: ModelInputs) -> dict[str, Tensor]:
        """Each term by its name, and kl where it counts, (B,)."""
        video_BCTHW = prepared.targets["video"]
        made_BCTHW, mean_BM, logvar_BM = split(output.float(), video_BCTHW)
        parts = {name: term.losses(made_BCTHW, video_BCTHW) for name, term in self.terms.items()}
        return parts | ({"kl": self.kl * divergence(mean_BM, logvar_BM)} if self.kl else {})
