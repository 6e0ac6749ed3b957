# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the amax of past steps, from which delayed scaling takes the factors of the next one."""

import torch
from torch import Tensor, nn

from nemo_vfm.parallel.fp8.quantise import factor_of


class AmaxHistory(nn.Module):
    """The history of one operand of a linear; its buffers are state of the training.

    A step adds one entry, however often its forward pass runs: micro-batches and recomputation share it as a maximum.

    Args:
        length: steps that are looked back on.
        dtype: of the elements, E4M3 or E5M2.
        margin: room for numbers 2^margin times as large as any seen.
    """

    factor: Tensor  #: (), an element is the number times it
    seen: Tensor  #: (length,), the amax of each step; the first is that of the step under way

    def __init__(self, length: int, dtype: torch.dtype, margin: int = 0) -> None:
        super().__init__()
        self.dtype, self.margin = dtype, margin
        self.register_buffer("factor", torch.ones(()))
        self.register_buffer("seen", torch.zeros(length))

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]
        # `model.to(torch.bfloat16)` is for weights: a factor that is rounded is not the one that was used.
        factor, seen = self.factor, self.seen
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.factor, self.seen = factor.to(self.factor.device), seen.to(self.seen.device)
        return self

    @torch.no_grad()
    def see(self, x: Tensor) -> None:
        """Note the amax of a tensor of the step under way; validation leaves no trace."""
        if not self.training:
            return
        self.seen[0] = torch.maximum(self.seen[0], x.detach().abs().max().float())

    @torch.no_grad()
    def close_step(self) -> None:
        """Take the next step's factor from the history, which moves on by one.

        factor = (max / amax) / 2^margin, amax the largest of the history; the old one stays where amax is 0, infinite
        or NaN. Whoever splits the tensor over ranks makes `seen[0]` that of the whole before.
        """
        amax = self.seen.max()
        fits = (amax > 0) & torch.isfinite(amax)
        self.factor = torch.where(fits, factor_of(amax, self.dtype) / 2.0**self.margin, self.factor)
        self.seen = self.seen.roll(-1)
        self.seen[0] = 0
