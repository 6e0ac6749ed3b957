"""Conditions on given frames by placing them in the noisy video, as Cosmos and Wan 2.2 TI2V do.

Shape letters: B batch, C channels, T latent frames, H height, W width.
"""

from dataclasses import replace

import torch
from torch import Tensor

from nemo_vfm.core.frame_count import LatentFrames
from nemo_vfm.core.types.encoders import Codec
from nemo_vfm.diffusion.frame_conditioning import GivenFrames, nothing_given
from nemo_vfm.diffusion.objective import Objective


class GivenInTime:
    """Replaces the first noisy latent frames by the given ones.

    Args:
        least: fewest given latent frames of a training sample; the number is uniform in `least` to `most`, never all.
        most: most given latent frames of a training sample.
        none_given: share of training samples without given frames, so that text alone still works.
        sigma: noise level added to given frames. Cosmos 1 uses 0.001.
        sigma_log_mean: mean of the logarithm of that level in training; None uses `sigma` there, too. Cosmos 1 uses -3.
        sigma_log_std: standard deviation of that logarithm. Cosmos 1 uses 2.
        level: the network's noise-level input at given frames, as the objective expresses it. None passes one level
            for all frames, as in Cosmos 1. Cosmos 2 and 2.5 use 1e-4, Wan 2.2 TI2V 0.
        mask: whether the network has an extra channel that is 1 at given frames, as every Cosmos has.
    """

    def __init__(
        self, *, least: LatentFrames = LatentFrames(1), most: LatentFrames = LatentFrames(2), none_given: float = 0.0,
        sigma: float = 0.0, sigma_log_mean: float | None = None, sigma_log_std: float = 2.0,
        level: float | None = 0.0, mask: bool = True,
    ) -> None:  # fmt: skip
        if not 0 <= least.count <= most.count:
            raise ValueError(f"least ({least}) must not be more than most ({most})")
        if not 0 <= none_given <= 1:
            raise ValueError(f"none_given must lie in 0..1, got {none_given}")
        if sigma < 0 or sigma_log_std < 0:
            raise ValueError(f"sigma ({sigma}) and sigma_log_std ({sigma_log_std}) must not be negative")
        self.least, self.most, self.none_given = least, most, none_given
        self.sigma, self.sigma_log_mean, self.sigma_log_std = sigma, sigma_log_mean, sigma_log_std
        self.level, self.mask = level, mask

    def draw(self, generator: torch.Generator, num_frames: int) -> tuple[int, float]:
        which, level = torch.rand((), generator=generator), torch.randn((), generator=generator)
        count = int(torch.randint(self.least.count, self.most.count + 1, (), generator=generator))
        sigma = self.sigma
        if self.sigma_log_mean is not None:
            sigma = float(torch.exp(level * self.sigma_log_std + self.sigma_log_mean))
        return 0 if which < self.none_given else min(count, num_frames - 1), sigma

    def of_sample(self, count: int, clean_CTHW: Tensor, video_CTHW: Tensor | None, codec: Codec) -> GivenFrames:
        """See `FrameConditioning`; the sample's own latents."""
        return self._first_frames(count, clean_CTHW)

    def from_pixels(self, video_CTHW: Tensor, num_frames: int, codec: Codec) -> GivenFrames:
        """See `FrameConditioning`.

        A causal codec ignores later frames, so these are the first latents of any video with this beginning.
        """
        latents, frames = video_CTHW.new_zeros(codec.latent_shape(num_frames, *video_CTHW.shape[2:])), 0
        if video_CTHW.shape[1]:
            known = codec.encode(video_CTHW[None])[0]
            frames = known.shape[1]
            latents[:, :frames] = known
        return replace(self._first_frames(frames, latents), sigma_B=latents.new_full((1,), self.sigma))

    def _first_frames(self, count: int, latents_CTHW: Tensor) -> GivenFrames:
        given = nothing_given(latents_CTHW)
        given.mask_BT[:, :count] = True
        return replace(given, latents_BCTHW=latents_CTHW[None])

    def inputs(
        self, objective: Objective, noisy_BCTHW: Tensor, sigma_B: Tensor, given: GivenFrames
    ) -> dict[str, Tensor]:
        latents, level_B = objective.inputs(noisy_BCTHW, sigma_B)
        noised = objective.add_noise(given.latents_BCTHW, given.noise_BCTHW, given.sigma_B)
        known, _ = objective.inputs(noised, given.sigma_B)
        # EDM's input ln sigma does not exist at noise level 0; the level computed there is not used.
        mask_B1T11 = given.mask_BT[:, None, :, None, None]
        joined = torch.where(mask_B1T11, known.to(latents), latents)
        if self.level is not None:
            level_B = torch.where(given.mask_BT, torch.full_like(level_B, self.level)[:, None], level_B[:, None])
        inputs = {"latents_BCTHW": joined, "noise_B": level_B}
        if self.mask:
            inputs["condition_BCTHW"] = mask_B1T11.to(latents).expand(-1, 1, -1, *latents.shape[3:])
        return inputs

    def given_mask(self, given: GivenFrames) -> Tensor | None:
        """Latents of the given frames."""
        return given.mask_BT[:, None, :, None, None]
