"""Computes attention in FP8, emulated: both of its products have E4M3 operands, and softmax is in float32.

Queries, keys and values have one scale for a tensor each. Probabilities are at most 1, so theirs is fixed: an element
is 448 times the probability. Each query's sum of probabilities is of those before rounding, as in fused kernels.
Shape letters: B batch, H heads, S query positions, L key positions, D head dimension.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nemo_vfm.parallel.fp8.quantise import E4M3, dequantise, quantise, quantise_by

_SCORES = 1 << 24  # that are held at once: 64 MB in float32


@torch.no_grad()
def fp8_attention(q_BHSD: Tensor, k_BHLD: Tensor, v_BHLD: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax attention scaled by 1/sqrt(D), for inference: it has no gradient.

    Args:
        mask: boolean, broadcastable to (B, H, S, L), True where a key may be seen.

    Returns:
        (B, H, S, D), in the dtype of the queries.
    """
    with torch.autocast(q_BHSD.device.type, enabled=False):
        q, k, v = (dequantise(quantise(x, "tensor")) for x in (q_BHSD, k_BHLD, v_BHLD))
        rows = max(1, _SCORES // (q.shape[0] * q.shape[1] * k.shape[2]))
        masks: Sequence[Tensor | None] = [mask] * -(-q.shape[2] // rows)
        if mask is not None and mask.shape[2] > 1:
            masks = torch.split(mask, rows, 2)
        parts = []
        for some_q, some_mask in zip(torch.split(q, rows, 2), masks, strict=True):
            scores = some_q @ k.transpose(2, 3) * q.shape[3] ** -0.5
            if some_mask is not None:
                scores = scores.masked_fill(~some_mask, -torch.inf)
            shares = torch.exp(scores - scores.amax(3, keepdim=True))
            most = shares.new_tensor(torch.finfo(E4M3).max)
            parts.append(dequantise(quantise_by(shares, most)) @ v / shares.sum(3, keepdim=True))
        return torch.cat(parts, 2).to(q_BHSD.dtype)
