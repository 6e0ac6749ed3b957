# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Puts given frames into further channels of the input, as Wan's image-to-video models take them.

Shape letters: B batch, C channels, T latent frames (of pixels: frames), H height, W width, K further channels.
"""

from dataclasses import replace

import torch
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.frame_count import PixelFrames
from nemo_vfm.core.types.encoders import Codec, ImageTokens, Offloadable
from nemo_vfm.diffusion.conditioning.frame_conditioning import GivenFrames, nothing_given
from nemo_vfm.diffusion.objective import Objective


class GivenInChannels:
    """Beside the noisy latents stand a mask and the latents of a video that is grey after the given frames.

    The mask has a channel for each pixel frame of a latent frame; the first latent frame holds one, four times.
    All frames are made, and all have a loss.

    Args:
        frames: pixel frames of a training sample that are given. Wan was trained with one.
        none_given: share of training samples of which nothing is given.
        image_encoder: gives the tokens of the first image that Wan 2.1 also looks at; None where it does not.

    Raises:
        ValueError: no frames, or a share outside 0..1.
    """

    def __init__(
        self, *, frames: PixelFrames = PixelFrames(1), none_given: float = 0.0, image_encoder: ImageTokens | None = None
    ) -> None:
        if frames.count < 1:
            raise ValueError(f"frames is {frames}, expected 1 or more")
        if not 0 <= none_given <= 1:
            raise ValueError(f"none_given must lie in 0..1, got {none_given}")
        self.frames, self.none_given, self.image_encoder = frames, none_given, image_encoder

    def draw(self, generator: torch.Generator, num_frames: int) -> tuple[int, float]:
        """See `FrameConditioning`; here a count of pixel frames."""
        return 0 if torch.rand((), generator=generator) < self.none_given else self.frames.count, 0.0

    def of_sample(self, count: int, clean_CTHW: Tensor, video_CTHW: Tensor | None, codec: Codec) -> GivenFrames:
        """See `FrameConditioning`: the video after the given frames is grey, which cannot be had from its latents.

        Raises:
            UserError: the data hold latents alone.
        """
        if video_CTHW is None:
            raise UserError("this network is given frames through the codec, which takes pixels, and the data hold "
                            "latents alone; name data of pixels")  # fmt: skip
        return self.from_pixels(video_CTHW[:, :count], video_CTHW.shape[1], codec)

    def from_pixels(self, video_CTHW: Tensor, num_frames: int, codec: Codec) -> GivenFrames:
        """See `FrameConditioning`."""
        _, frames, height, width = codec.latent_shape(num_frames, *video_CTHW.shape[2:])
        count = video_CTHW.shape[1]
        grey = video_CTHW.new_zeros(video_CTHW.shape[0], num_frames - count, *video_CTHW.shape[2:])
        video = torch.cat([video_CTHW, grey], 1)
        latents = codec.encode(video[None])
        per_latent = (num_frames - 1) // (frames - 1) if frames > 1 else 4
        given_F = (torch.arange(num_frames) < count).to(latents)
        spread_F = torch.cat([given_F[:1].expand(per_latent), given_F[1:]])
        mask = spread_F.unflatten(0, (frames, per_latent)).t()[None, :, :, None, None]  # type: ignore[no-untyped-call]
        image = None if self.image_encoder is None else self.image_encoder.encode(video[:, :1])[None].to(latents)
        return replace(
            nothing_given(latents[0]), image_BLD=image,
            condition_BKTHW=torch.cat([mask.expand(-1, -1, -1, height, width), latents], 1),
        )  # fmt: skip

    def offload(self) -> None:
        """See `Offloadable`: of the image's encoder."""
        encoder: object = self.image_encoder
        if isinstance(encoder, Offloadable):
            encoder.offload()

    def inputs(
        self, objective: Objective, noisy_BCTHW: Tensor, sigma_B: Tensor, given: GivenFrames
    ) -> dict[str, Tensor]:
        """See `FrameConditioning`."""
        latents, level_B = objective.inputs(noisy_BCTHW, sigma_B)
        assert given.condition_BKTHW is not None, "made by from_pixels"
        inputs = {"latents_BCTHW": latents, "noise_B": level_B, "condition_BCTHW": given.condition_BKTHW.to(latents)}
        return inputs if given.image_BLD is None else inputs | {"image_BLD": given.image_BLD}

    def known(self, given: GivenFrames) -> Tensor | None:
        """Nothing: the network makes all frames."""
        return None
