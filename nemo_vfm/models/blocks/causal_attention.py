"""Applies attention within each frame and over earlier frames; never over later ones.

torch's attention is called directly: that of `parallel/` may spread a sequence over ranks, and these frames are whole.
Shape letters: B batch, T frames, H height, W width, C channels, N heads, D head dimension, K frames looked at.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.models.blocks.causal_conv import Past, behind
from nemo_vfm.parallel.layers.linear import Linear


class FrameAttention(nn.Module):
    """Every position looks at every other of its frame."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
        nn.init.zeros_(self.out.weight)

    def forward(self, x_BTHWC: Tensor, past: Past | None = None) -> Tensor:
        """(B, T, H, W, C); the past does not matter here."""
        qkv = self.qkv(self.norm(x_BTHWC)).flatten(2, 3).unflatten(3, (3, self.heads, -1)).flatten(0, 1)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        looked = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        update: Tensor = self.out(looked)
        return x_BTHWC + update.view_as(x_BTHWC)


class PastAttention(nn.Module):
    """Every position looks at itself in this frame and the `window - 1` before, which a bias per head tells apart."""

    def __init__(self, *, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(heads, window))
        nn.init.zeros_(self.out.weight)

    def forward(self, x_BTHWC: Tensor, past: Past | None = None) -> Tensor:
        """(B, T, H, W, C)."""
        num_frames = x_BTHWC.shape[1]
        seen = behind(past, self, self.norm(x_BTHWC), self.window - 1)
        q, k, v = self.qkv(seen).unflatten(4, (3, self.heads, -1)).unbind(4)
        q_BTHWN1D = q[:, -num_frames:].unsqueeze(5)
        k, v_BTHWNKD = (part.unfold(1, self.window, 1).transpose(5, 6) for part in (k, v))
        bias = self.bias.to(q.dtype)[:, None]
        looked = F.scaled_dot_product_attention(q_BTHWN1D, k, v_BTHWNKD, attn_mask=bias).squeeze(5).flatten(4)
        update: Tensor = self.out(looked)
        return x_BTHWC + update
