# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Defines the denoising task: prepares the network's inputs from a batch and computes each sample's loss.

Every sample's noise level, text dropout and noise come from its own generator, seeded by (seed, batch number, clip id).
The rank, the worker, the place in the batch, the other samples and packing do not change them.
Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token, X positions of
one packed sample after another.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.latent_rows import rows_of, videos_of
from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.batch import Batch, PackedBatch, VideoBatch
from nemo_vfm.core.types.encoders import Codec, TextEncoder
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.diffusion.objective import Objective

Videos = VideoBatch | PackedBatch


class Denoise:
    """The task of every diffusion model.

    Args:
        objective: path, noise levels and loss.
        codec: turns pixels into latents where a batch has pixels.
        text_encoder: embeds captions where a batch has no embeddings, and the empty text of dropout.
        text_dropout: share of training samples whose text is replaced by the empty one, for guidance.
        mean: what counts alike in the mean of a global batch: each sample, as where a batch has one shape, or each
            token, so that a video counts as much as all images of as many tokens. Packed or not, it is the same mean.

    Raises:
        ValueError: text_dropout outside 0..1.
    """

    def __init__(
        self, *, objective: Objective, codec: Codec, text_encoder: TextEncoder, text_dropout: float = 0.1,
        mean: Literal["sample", "token"] = "sample",
    ) -> None:  # fmt: skip
        if not 0 <= text_dropout <= 1:
            raise ValueError(f"text_dropout must lie in 0..1, got {text_dropout}")
        if mean not in ("sample", "token"):
            raise ValueError(f"mean must be sample or token, got {mean!r}")
        self.objective, self.codec, self.text_encoder = objective, codec, text_encoder
        self.text_dropout, self.mean = text_dropout, mean

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        """Noisy latents and text as the network's inputs; without training no text is dropped.

        Raises:
            UserError: these are no videos.
        """
        if not isinstance(batch, VideoBatch | PackedBatch):
            raise UserError(f"a diffusion model learns from videos or latents, and this data gives a "
                            f"{type(batch).__name__}; name data of videos")  # fmt: skip
        clean = self._clean(batch)
        device = clean[0].device
        text_BLD, mask_BL = self._text(batch, device)
        draws = [self._draw(batch, key, one, seed, training) for key, one in zip(batch.keys, clean, strict=True)]
        sigma_B = torch.stack([sigma for sigma, _, _ in draws]).to(device)
        dropped_B = torch.tensor([dropped for _, _, dropped in draws], device=device)
        text_BLD, mask_BL = self._without(text_BLD, mask_BL, dropped_B)
        inputs, targets = self._shown(batch, clean, [noise.to(device) for _, noise, _ in draws], sigma_B)
        return ModelInputs(
            inputs={**inputs, "text_BLD": text_BLD, "text_mask_BL": mask_BL, "fps_B": batch.fps_B},
            targets={**targets, "sigma": sigma_B},
            weight_B=self._weight(batch, clean),
            tags={"noise": self.objective.fraction(sigma_B)},
        )

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """The objective's loss of each sample, (B,), in fp32 whatever the network computed in."""
        targets = prepared.targets
        of, sigma_B = (output.float(), targets["clean"], targets["noise"]), targets["sigma"]
        if "sizes_N3" not in prepared.inputs:
            return self.objective.losses(*of, sigma_B)
        sizes = prepared.inputs["sizes_N3"].tolist()
        each = zip(*(videos_of(rows_XC, sizes) for rows_XC in of), sigma_B[:, None], strict=True)
        return torch.cat([self.objective.losses(*one) for one in each])

    def _shown(
        self, batch: Videos, clean: Sequence[Tensor] | Tensor, noise: Sequence[Tensor], sigma_B: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What the network sees and what the loss compares; packed samples are noised each by itself, then laid."""
        if isinstance(clean, Tensor):
            noise_BCTHW = torch.stack(list(noise))
            shown, level_B = self._noised(clean, noise_BCTHW, sigma_B)
            return {"latents_BCTHW": shown, "noise_B": level_B}, {"clean": clean, "noise": noise_BCTHW}
        pairs = [
            self._noised(x[None], n[None], sigma) for x, n, sigma in zip(clean, noise, sigma_B[:, None], strict=True)
        ]
        assert isinstance(batch, PackedBatch)
        sizes_N3 = torch.tensor(batch.sizes_THW)  # stays on the host, where it is read
        inputs = {"latents_XC": _laid([shown[0] for shown, _ in pairs]), "sizes_N3": sizes_N3}
        return inputs | {"noise_B": torch.cat([b for _, b in pairs])}, {"clean": _laid(clean), "noise": _laid(noise)}

    def _noised(self, clean: Tensor, noise: Tensor, sigma_B: Tensor) -> tuple[Tensor, Tensor]:
        return self.objective.inputs(self.objective.noised(clean, noise, sigma_B), sigma_B)

    def _weight(self, batch: Videos, clean: Sequence[Tensor] | Tensor) -> Tensor:
        if self.mean == "sample":
            return batch.weight_B
        return batch.weight_B * torch.tensor([float(one[0].numel()) for one in clean], device=batch.weight_B.device)

    def _clean(self, batch: Videos) -> list[Tensor] | Tensor:
        """Each sample as (C, T, H, W): a list where they are packed."""
        if isinstance(batch, PackedBatch):
            return [one[0] for one in videos_of(batch.latents_XC.float(), batch.sizes_THW)]
        if batch.latents_BCTHW is not None:
            return batch.latents_BCTHW.float()
        assert batch.video_BCTHW is not None, "a batch has latents or pixels"
        return self.codec.encode(batch.video_BCTHW.float() / 127.5 - 1)

    def _text(self, batch: Videos, device: torch.device) -> tuple[Tensor, Tensor]:
        text_BLD, mask_BL = batch.text_BLD, batch.text_mask_BL
        if text_BLD is None or mask_BL is None:
            text_BLD, mask_BL = self.text_encoder.encode(batch.captions)
        return text_BLD.to(device).float(), mask_BL.to(device)

    def _draw(self, batch: Batch, key: str, clean: Tensor, seed: int, training: bool) -> tuple[Tensor, Tensor, bool]:
        """Noise level, noise and whether the text is dropped, in this order, from the sample's own generator."""
        numbers = generator(seed, "training" if training else "validation", batch.index, key)
        sigma = self.objective.draw(numbers, clean.shape[1:])
        dropped = bool(torch.rand((), generator=numbers) < self.text_dropout) and training
        return sigma, torch.randn(clean.shape, generator=numbers), dropped

    def _without(self, text_BLD: Tensor, mask_BL: Tensor, dropped_B: Tensor) -> tuple[Tensor, Tensor]:
        """The empty text in the place of dropped ones, padded or cut to the batch's length."""
        if not bool(dropped_B.any()):
            return text_BLD, mask_BL
        empty, empty_mask = empty_like(self.text_encoder, text_BLD)
        text = torch.where(dropped_B[:, None, None], empty, text_BLD)
        return text, torch.where(dropped_B[:, None], empty_mask, mask_BL)


def _laid(samples: Sequence[Tensor]) -> Tensor:
    """(X, C)."""
    return torch.cat([rows_of(one[None]) for one in samples])


def empty_like(text_encoder: TextEncoder, text_BLD: Tensor) -> tuple[Tensor, Tensor]:
    """The empty text as (1, L, D) and (1, L), with the length, dtype and device of `text_BLD`."""
    empty, mask = text_encoder.encode([""])
    length = text_BLD.shape[1]
    missing = max(length - empty.shape[1], 0)
    empty = torch.nn.functional.pad(empty, (0, 0, 0, missing))[:, :length]
    return empty.to(text_BLD), torch.nn.functional.pad(mask, (0, missing))[:, :length].to(text_BLD.device)
