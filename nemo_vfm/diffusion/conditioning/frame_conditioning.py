# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Declares how a network is told of frames that it is given: a first image, or the end of a clip to go on from.

Shape letters: B batch, C channels, T latent frames (of pixels: frames), H height, W width, K further channels.
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
    """What is known of each video of a batch.

    Args:
        mask_BT: True at the latent frames that are known; the first of each video.
        latents_BCTHW: clean latents there, in the units of the objective; elsewhere anything.
        noise_BCTHW: standard normal numbers, where given frames carry noise.
        sigma_B: the noise level that they carry.
        condition_BKTHW: further channels of the network's input; None where it has none for given frames.
        image_BLD: tokens of the given image, for a network that looks at images.
    """

    mask_BT: Tensor
    latents_BCTHW: Tensor
    noise_BCTHW: Tensor
    sigma_B: Tensor
    condition_BKTHW: Tensor | None = None
    image_BLD: Tensor | None = None

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        return replace(self, **{name: one.to(device) for name, one in self._present().items()})

    def _present(self) -> dict[str, Tensor]:
        held = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: one for name, one in held.items() if one is not None}

    @property
    def mask_B1T11(self) -> Tensor:
        """The mask in the shape of latents."""
        return self.mask_BT[:, None, :, None, None]


@runtime_checkable
class FrameConditioning(Protocol):
    """One way to tell a network."""

    def draw(self, generator: torch.Generator, num_frames: int) -> tuple[int, float]:
        """How many latent frames of a training sample are given, and the noise level they carry."""
        ...

    def of_sample(self, count: int, clean_CTHW: Tensor, video_CTHW: Tensor | None, codec: Codec) -> GivenFrames:
        """What is given of a training sample, as a batch of one.

        Args:
            count: as drawn.
            clean_CTHW: its latents.
            video_CTHW: its pixels in [-1, 1]; None where the data hold latents alone.
            codec: of the network.

        Raises:
            UserError: this takes pixels.
        """
        ...

    def from_pixels(self, video_CTHW: Tensor, num_frames: int, codec: Codec) -> GivenFrames:
        """What is given of a video to be made, as a batch of one.

        Args:
            video_CTHW: the given frames in [-1, 1]; none of them where nothing is given.
            num_frames: frames of the whole video.
            codec: of the network.

        Raises:
            ValueError: as many frames as the codec cannot end a latent frame with.
        """
        ...

    def inputs(
        self, objective: Objective, noisy_BCTHW: Tensor, sigma_B: Tensor, given: GivenFrames
    ) -> dict[str, Tensor]:
        """The network's inputs: latents, the noise level it is told, and what it takes besides.

        Args:
            objective: of the network.
            noisy_BCTHW: the point of the path.
            sigma_B: its noise level.
            given: what is known.
        """
        ...

    def known(self, given: GivenFrames) -> Tensor | None:
        """(B, 1, T, 1, 1), True where latents are what is given, and have no loss; None where all are made."""
        ...


def batch_of(videos: Sequence[GivenFrames]) -> GivenFrames:
    """Several as one batch."""
    rows = [[getattr(one, name) for one in videos] for name in GivenFrames.__dataclass_fields__]
    return GivenFrames(*(None if row[0] is None else torch.cat(row) for row in rows))  # type: ignore[arg-type]


def nothing_given(latents_CTHW: Tensor) -> GivenFrames:
    """A batch of one video of this size, of which nothing is known."""
    whole = latents_CTHW[None]
    mask_BT = torch.zeros(whole.shape[0], whole.shape[2], dtype=torch.bool, device=whole.device)
    return GivenFrames(mask_BT, torch.zeros_like(whole), torch.zeros_like(whole), whole.new_zeros(1))
