# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Held-out batches in; the validation loss, as a whole and by noise level, out."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch

from nemo_vfm.train.fit import Fit


class Validate:
    """Measures the loss on the held-out batches with fixed noise, so that curves of two runs can be compared.

    Args:
        every_steps: optimizer steps between measurements; there is always one at the end.
        noise_edges: borders of the noise bins; a loss of diffusion is mostly a matter of how much noise there was.
    """

    def __init__(
        self, *, every_steps: int = 1000, noise_edges: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    ) -> None:
        if every_steps < 1 or list(noise_edges) != sorted(noise_edges) or len(noise_edges) < 2:
            raise ValueError(f"every_steps ({every_steps}) must be at least 1, noise_edges ({noise_edges}) must rise")
        self.every_steps, self.noise_edges = every_steps, tuple(noise_edges)

    def on_step(self, fit: Fit) -> None:
        """Measure where due, with the averaged weights if there are any."""
        if not fit.due(self.every_steps):
            return
        with fit.ema.applied(fit.model) if fit.ema else nullcontext():
            measured = [fit.engine.evaluate(batch) for batch in fit.data.val_dataloader()]
        if not measured:
            return
        losses = torch.cat([losses_B.cpu() for losses_B, _ in measured])
        weights = torch.cat([prepared.weight_B.cpu() for _, prepared in measured])
        fit.metrics["val_loss"] = _mean(losses, weights)
        if all("noise" in prepared.tags for _, prepared in measured):
            noise = torch.cat([prepared.tags["noise"].cpu() for _, prepared in measured])
            fit.metrics |= self._by_noise(losses, weights, noise)

    def _by_noise(self, losses: torch.Tensor, weights: torch.Tensor, noise: torch.Tensor) -> dict[str, float]:
        bins = torch.bucketize(noise, torch.tensor(self.noise_edges[1:-1]))
        spans = list(zip(self.noise_edges, self.noise_edges[1:], strict=False))
        inside = {f"val_loss/noise_{low:g}-{high:g}": bins == i for i, (low, high) in enumerate(spans)}
        return {
            name: _mean(losses[which], weights[which]) for name, which in inside.items() if weights[which].sum() > 0
        }


def _mean(losses: torch.Tensor, weights: torch.Tensor) -> float:
    return float((losses * weights).sum() / weights.sum().clamp_min(1e-12))
