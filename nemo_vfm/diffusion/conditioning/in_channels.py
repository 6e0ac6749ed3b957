"""Conditions on given frames through extra input channels, as Wan's image-to-video models do.

Shape letters: B batch, C channels, T latent frames (in pixels: frames), H height, W width, K condition channels.
"""

from dataclasses import replace

import torch
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.frame_count import PixelFrames
from nemo_vfm.core.types.encoders import Codec, ImageTokens, Offloadable
from nemo_vfm.diffusion.frame_conditioning import GivenFrames, nothing_given
from nemo_vfm.diffusion.objective import Objective


class GivenInChannels:
    """Concatenates a mask, and the latents of a video that is grey after the given frames, to the noisy latents.

    The mask has one channel per pixel frame of a latent frame. The first latent frame holds one pixel frame, whose
    mask is repeated in every channel. All frames are generated, and all have a loss.

    Args:
        frames: given pixel frames of a training sample. Wan was trained with one.
        none_given: share of training samples without given frames.
        image_encoder: encodes the first image to the tokens that Wan 2.1 also attends to; None if the model has none.
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
        """See `FrameConditioning`; the count is in pixel frames."""
        return 0 if torch.rand((), generator=generator) < self.none_given else self.frames.count, 0.0

    def of_sample(self, count: int, clean_CTHW: Tensor, video_CTHW: Tensor | None, codec: Codec) -> GivenFrames:
        """See `FrameConditioning`. The video is grey after the given frames, so latents alone are not enough."""
        if video_CTHW is None:
            raise UserError("this network encodes given frames from pixels, but the data holds only latents; use "
                            "data with pixels")  # fmt: skip
        return self.from_pixels(video_CTHW[:, :count], video_CTHW.shape[1], codec)

    def from_pixels(self, video_CTHW: Tensor, num_frames: int, codec: Codec) -> GivenFrames:
        if video_CTHW.shape[1] == 0 and self.none_given == 0:
            raise ValueError("this network starts from an image, but none is given; give one for each prompt, or set "
                             "none_given if it was also trained without")  # fmt: skip
        _, frames, height, width = codec.latent_shape(num_frames, *video_CTHW.shape[2:])
        count = video_CTHW.shape[1]
        grey = video_CTHW.new_zeros(video_CTHW.shape[0], num_frames - count, *video_CTHW.shape[2:])
        video = torch.cat([video_CTHW, grey], 1)
        latents = codec.encode(video[None])
        per_latent = (num_frames - 1) // (frames - 1) if frames > 1 else 4
        given_F = (torch.arange(num_frames) < count).to(latents)
        spread_F = torch.cat([given_F[:1].expand(per_latent), given_F[1:]])
        mask = spread_F.unflatten(0, (frames, per_latent)).t()[None, :, :, None, None]  # type: ignore[no-untyped-call]
        image = None if self.image_encoder is None else self.image_encoder.image_tokens(video[:, :1])[None].to(latents)
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
        latents, level_B = objective.inputs(noisy_BCTHW, sigma_B)
        assert given.condition_BKTHW is not None, "made by from_pixels"
        inputs = {"latents_BCTHW": latents, "noise_B": level_B, "condition_BCTHW": given.condition_BKTHW.to(latents)}
        return inputs if given.image_BLD is None else inputs | {"image_BLD": given.image_BLD}

    def given_mask(self, given: GivenFrames) -> Tensor | None:
        """None: the network generates all frames."""
        return None
