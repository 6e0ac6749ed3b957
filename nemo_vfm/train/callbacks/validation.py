# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the validation loss on held-out batches, as a whole and by noise level."""

import json
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from nemo_vfm.core.types.task import ModelInputs, ReportsPerplexity
from nemo_vfm.parallel.ranks.consensus import everyone_says
from nemo_vfm.train.train_state import TrainState

#: loss, weight and noise of each sample of a batch
Measured = dict[str, list[float]]


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

    def on_step(self, fit: TrainState) -> None:
        """Measure where due, with the averaged weights if there are any."""
        if not fit.due(self.every_steps):
            return
        with fit.ema.applied(fit.model) if fit.ema else nullcontext():
            measured = _of_all(_of_this_rank(fit))
        if not measured:
            return
        losses, weights = (torch.tensor([x for batch in measured for x in batch[name]]) for name in ("loss", "weight"))
        fit.metrics["val_loss"] = _mean(losses, weights)
        if isinstance(fit.task, ReportsPerplexity):
            named = fit.task.named(fit.metrics["val_loss"])
            fit.metrics |= {f"val_{name}": value for name, value in named.items()}
        if all("noise" in batch for batch in measured):
            noise = torch.tensor([x for batch in measured for x in batch["noise"]])
            fit.metrics |= self._by_noise(losses, weights, noise)

    def _by_noise(self, losses: torch.Tensor, weights: torch.Tensor, noise: torch.Tensor) -> dict[str, float]:
        bins = torch.bucketize(noise, torch.tensor(self.noise_edges[1:-1]))
        spans = list(zip(self.noise_edges, self.noise_edges[1:], strict=False))
        inside = {f"val_loss/noise_{low:g}-{high:g}": bins == i for i, (low, high) in enumerate(spans)}
        return {
            name: _mean(losses[which], weights[which]) for name, which in inside.items() if weights[which].sum() > 0
        }


def _of_this_rank(fit: TrainState) -> dict[int, Measured]:
    """The batches that are this rank's to measure, by number: those of one data rank are measured on no other."""
    found: dict[int, Measured] = {}
    count, last = 0, None
    for count, last in enumerate(fit.data.val_dataloader(), 1):
        if (count - 1) % fit.plan.data == fit.data_rank:
            found[count - 1] = _measured(*fit.engine.evaluate(last))
    if last is not None and 0 < count % fit.plan.data <= fit.data_rank:
        fit.engine.evaluate(last)  # for nothing but the others, which may need this rank's part of the weights
    return found


def _measured(losses_B: torch.Tensor, prepared: ModelInputs) -> Measured:
    noise = {"noise": prepared.tags["noise"].tolist()} if "noise" in prepared.tags else {}
    return {"loss": losses_B.tolist(), "weight": prepared.weight_B.tolist(), **noise}


def _of_all(own: dict[int, Measured]) -> list[Measured]:
    """Every rank's batches in the order of the data, so that the sum is that of one device."""
    found = {int(n): batch for text in everyone_says(json.dumps(own)) for n, batch in json.loads(text).items()}
    return [found[number] for number in sorted(found)]


def _mean(losses: torch.Tensor, weights: torch.Tensor) -> float:
    return float((losses * weights).sum() / weights.sum().clamp_min(1e-12))
