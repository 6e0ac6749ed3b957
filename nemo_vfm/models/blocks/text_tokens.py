"""Masks text tokens, brings them to unit scale, and computes their mean.

Shape letters: B batch, L text tokens, D width of a text token.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.models.blocks.norm import rms_normalised
from nemo_vfm.parallel.layers.linear import Linear


class TextProjection(nn.Module):
    """Projects text tokens to the width of cross-attention by a linear and a GELU, as in Cosmos 2.5."""

    def __init__(self, text_dim: int, width: int) -> None:
        super().__init__()
        self.proj = Linear(text_dim, width)

    def forward(self, text_BLD: Tensor) -> Tensor:
        """(B, L, width)."""
        return F.gelu(self.proj(text_BLD))


def visible(text_BLD: Tensor, text_mask_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Text at unit scale with hidden tokens zeroed, and the mask that attention uses.

    A sample without a real token sees all its tokens, which are zero and so contribute zero values: a softmax over
    nothing is 0 / 0 in some attention kernels and zero in others.
    """
    text = rms_normalised(text_BLD) * text_mask_BL.unsqueeze(2).to(text_BLD.dtype)
    seen_BL = text_mask_BL | ~text_mask_BL.any(dim=1, keepdim=True)
    return text, seen_BL[:, None, None, :]


def as_given(text_BLD: Tensor, text_mask_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Text with hidden tokens zeroed, which attention sees like all others: so Cosmos was trained."""
    text = text_BLD * text_mask_BL.unsqueeze(2).to(text_BLD.dtype)
    return text, text_mask_BL.new_ones(text_mask_BL.shape)[:, None, None, :]


def mean_token(text_BLD: Tensor, text_mask_BL: Tensor) -> Tensor:
    """(B, D), zero for a text of which nothing may be seen."""
    weight_BL1 = text_mask_BL.unsqueeze(2).to(text_BLD.dtype)
    return (text_BLD * weight_BL1).sum(1) / weight_BL1.sum(1).clamp(min=1)
