# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A conditioning vector in, the shifts, scales and gates of a block out.

This is adaLN-zero (Peebles and Xie 2023, section 3.2).

Shape letters: B batch, S tokens, D width.
"""

import torch
from torch import Tensor, nn

from nemo_vfm.parallel.products import Linear


class Modulation(nn.Module):
    """One zero-initialised linear to `num_chunks` vectors, so that every block begins as the identity.

    The caller applies SiLU to the conditioning vector once for all blocks.
    """

    def __init__(self, *, width: int, num_chunks: int) -> None:
        super().__init__()
        self.num_chunks = num_chunks
        self.proj = Linear(width, num_chunks * width, bias=False)

    def forward(self, conditioning_BD: Tensor) -> tuple[Tensor, ...]:
        """`num_chunks` tensors (B, 1, D)."""
        chunks: tuple[Tensor, ...] = self.proj(conditioning_BD).unsqueeze(1).chunk(self.num_chunks, dim=2)
        return chunks


def modulate(x_BSD: Tensor, shift_B1D: Tensor, scale_B1D: Tensor) -> Tensor:
    """x (1 + scale) + shift, in one pass over x."""
    return torch.addcmul(shift_B1D, x_BSD, 1 + scale_B1D)


def gated(residual_BSD: Tensor, gate_B1D: Tensor, update_BSD: Tensor) -> Tensor:
    """residual + gate update, in one pass."""
    return torch.addcmul(residual_BSD, gate_B1D, update_BSD)
