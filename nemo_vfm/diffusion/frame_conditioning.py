"""Declares how a network is conditioned on given frames: a first image, or the end of a clip to continue.

Shape letters: B batch, C channels, T latent frames (in pixels: frames), H height, W width, K condition channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from nemo_vfm.core.types.encoders import Codec
from nemo_vfm.diffusion.objective import Objective


@dataclass(frozen=True, slots=True)
class GivenFrames:
    """The given frames of each video of a batch."""

    mask_BT: Tensor  #: True at the given latent frames, which are the first ones of each video
    #: clean latents of the given frames, in the units of the objective; other positions are ignored
    latents_BCTHW: Tensor
    noise_BCTHW: Tensor  #: standard normal noise, if given frames are noised
    sigma_B: Tensor  #: the noise level of the given frames
    condition_BKTHW: Tensor | None = None  #: extra input channels of the network; None if given frames use none
    image_BLD: Tensor | None = None  #: tokens of the given image, for a network that attends to images

    def to(self, device: torch.device) -> Self:
        held: dict[str, Tensor | None] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return replace(self, **{name: one.to(device) for name, one in held.items() if one is not None})


@runtime_checkable
class FrameConditioning(Protocol):
    """One way to condition a network on given frames."""

    def draw(self, generator: torch.Generator, num_frames: int) -> tuple[int, float]:
        """Draw how many latent frames of a training sample are given, and their noise level."""

    def of_sample(self, count: int, clean_CTHW: Tensor, video_CTHW: Tensor | None, codec: Codec) -> GivenFrames:
        """The given frames of a training sample, as many as were drawn, as a batch of one.

        The pixels are in [-1, 1]; they are None if the data hold only latents.
        """

    def from_pixels(self, video_CTHW: Tensor, num_frames: int, codec: Codec) -> GivenFrames:
        """The given frames, in [-1, 1], of a video of so many frames to generate, as a batch of one.

        T is 0 if nothing is given.
        """

    def inputs(
        self, objective: Objective, noisy_BCTHW: Tensor, sigma_B: Tensor, given: GivenFrames
    ) -> dict[str, Tensor]:
        """The network's inputs: latents, noise level, and any conditioning inputs."""

    def given_mask(self, given: GivenFrames) -> Tensor | None:
        """(B, 1, T, 1, 1), True at given latents, which have no loss; None if every latent is generated."""


def batch_of(videos: Sequence[GivenFrames]) -> GivenFrames:
    """Join samples into one batch."""
    rows = [[getattr(one, name) for one in videos] for name in GivenFrames.__dataclass_fields__]
    return GivenFrames(*(None if row[0] is None else torch.cat(row) for row in rows))  # type: ignore[arg-type]


def nothing_given(latents_CTHW: Tensor) -> GivenFrames:
    """A batch of one video of this size without given frames."""
    whole = latents_CTHW[None]
    mask_BT = torch.zeros(whole.shape[0], whole.shape[2], dtype=torch.bool, device=whole.device)
    return GivenFrames(mask_BT, torch.zeros_like(whole), torch.zeros_like(whole), whole.new_zeros(1))
