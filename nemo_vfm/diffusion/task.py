# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A batch in, network inputs and the loss of each sample out: learning to denoise.

Every sample's noise level, text dropout and noise come from a generator of its own, seeded by (seed, batch number,
clip id): neither the rank, the worker, the place in the batch nor the other samples change them.
Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

import torch
from torch import Tensor

from nemo_vfm.core.seed import generator
from nemo_vfm.core.types import Batch, Codec, Prepared, TextEncoder
from nemo_vfm.diffusion.objective import Objective


class Denoise:
    """The task of every diffusion model.

    Args:
        objective: path, noise levels and loss.
        codec: turns pixels into latents where a batch has pixels.
        text_encoder: embeds captions where a batch has no embeddings, and the empty text of dropout.
        text_dropout: share of training samples whose text is replaced by the empty one, for guidance.

    Raises:
        ValueError: text_dropout outside 0..1.
    """

    def __init__(
        self, *, objective: Objective, codec: Codec, text_encoder: TextEncoder, text_dropout: float = 0.1
    ) -> None:
        if not 0 <= text_dropout <= 1:
            raise ValueError(f"text_dropout must lie in 0..1, got {text_dropout}")
        self.objective, self.codec, self.text_encoder = objective, codec, text_encoder
        self.text_dropout = text_dropout

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> Prepared:
        """Noisy latents and text as the network's inputs; without training no text is dropped."""
        clean = self._clean(batch)
        text_BLD, mask_BL = self._text(batch, clean.device)
        draws = [self._draw(batch, key, clean, seed, training) for key in batch.keys]
        sigma_B = torch.stack([sigma for sigma, _, _ in draws]).to(clean.device)
        noise = torch.stack([noise for _, noise, _ in draws]).to(clean.device)
        dropped_B = torch.tensor([dropped for _, _, dropped in draws], device=clean.device)
        text_BLD, mask_BL = self._without(text_BLD, mask_BL, dropped_B)
        latents, noise_B = self.objective.inputs(self.objective.noised(clean, noise, sigma_B), sigma_B)
        return Prepared(
            inputs={
                "latents_BCTHW": latents,
                "noise_B": noise_B,
                "text_BLD": text_BLD,
                "text_mask_BL": mask_BL,
                "fps_B": batch.fps_B,
            },
            targets={"clean": clean, "noise": noise, "sigma": sigma_B},
            weight_B=batch.weight_B,
            tags={"noise": self.objective.fraction(sigma_B)},
        )

    def losses(self, output: Tensor, prepared: Prepared) -> Tensor:
        """The objective's loss of each sample, (B,), in fp32 whatever the network computed in."""
        targets = prepared.targets
        return self.objective.losses(output.float(), targets["clean"], targets["noise"], targets["sigma"])

    def _clean(self, batch: Batch) -> Tensor:
        if batch.latents_BCTHW is not None:
            return batch.latents_BCTHW.float()
        assert batch.video_BCTHW is not None, "a batch has latents or pixels"
        return self.codec.encode(batch.video_BCTHW.float() / 127.5 - 1)

    def _text(self, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
        text_BLD, mask_BL = batch.text_BLD, batch.text_mask_BL
        if text_BLD is None or mask_BL is None:
            text_BLD, mask_BL = self.text_encoder.encode(batch.captions)
        return text_BLD.to(device).float(), mask_BL.to(device)

    def _draw(self, batch: Batch, key: str, clean: Tensor, seed: int, training: bool) -> tuple[Tensor, Tensor, bool]:
        """Noise level, noise and whether the text is dropped, in this order, from the sample's own generator."""
        numbers = generator(seed, "training" if training else "validation", batch.index, key)
        sigma = self.objective.draw(numbers, clean.shape[2:])
        dropped = bool(torch.rand((), generator=numbers) < self.text_dropout) and training
        return sigma, torch.randn(clean.shape[1:], generator=numbers), dropped

    def _without(self, text_BLD: Tensor, mask_BL: Tensor, dropped_B: Tensor) -> tuple[Tensor, Tensor]:
        """The empty text in the place of dropped ones, padded or cut to the batch's length."""
        if not bool(dropped_B.any()):
            return text_BLD, mask_BL
        empty, empty_mask = empty_like(self.text_encoder, text_BLD)
        text = torch.where(dropped_B[:, None, None], empty, text_BLD)
        return text, torch.where(dropped_B[:, None], empty_mask, mask_BL)


def empty_like(text_encoder: TextEncoder, text_BLD: Tensor) -> tuple[Tensor, Tensor]:
    """The empty text as (1, L, D) and (1, L), with the length, dtype and device of `text_BLD`."""
    empty, mask = text_encoder.encode([""])
    length = text_BLD.shape[1]
    missing = max(length - empty.shape[1], 0)
    empty = torch.nn.functional.pad(empty, (0, 0, 0, missing))[:, :length]
    return empty.to(text_BLD), torch.nn.functional.pad(mask, (0, missing))[:, :length].to(text_BLD.device)
