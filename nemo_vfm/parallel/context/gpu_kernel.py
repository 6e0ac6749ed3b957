"""Computes attention over rows of unequal lengths on a GPU by torch's own flash kernels.

The operators are those under `torch.nn.attention.varlen` (torch 2.11 to 2.13). They have no stable name, and that
module's public function does not accept another lse for its backward pass. `chosen` tests them before use.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.parallel.context.varlen_batching import Lengths

_STEP = 8  # the kernels' head dimensions are multiples of this
_WIDEST = 256


class GpuFlash:
    """torch's flash kernels for 16-bit rows of unequal lengths."""

    @staticmethod
    def usable(q: Tensor) -> bool:
        """Whether they take such queries; a GPU before compute capability 8.0 has none."""
        names = ("_flash_attention_forward", "_flash_attention_backward")
        return (
            q.is_cuda
            and q.dtype in (torch.float16, torch.bfloat16)
            and q.shape[-1] <= _WIDEST
            and torch.cuda.get_device_capability(q.device) >= (8, 0)
            and all(hasattr(torch.ops.aten, name) for name in names)
        )

    def forward(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, lengths: Lengths) -> tuple[Tensor, Tensor]:
        """See `Sequences.forward`."""
        width = q_THD.shape[2]
        q, k, v = (_widened(x) for x in (q_THD, k_TKD, v_TKD))
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, lengths.q_ends_N1, lengths.k_ends_N1, lengths.q_most, lengths.k_most, 0.0, lengths.diagonal,
            False, scale=width**-0.5,
        )  # fmt: skip
        return out[..., :width], lse

    def backward(self, do_THD: Tensor, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, out_THD: Tensor, lse_HT: Tensor,
                 lengths: Lengths) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See `Sequences.backward`."""
        width = q_THD.shape[2]
        do, q, k, v, out = (_widened(x) for x in (do_THD, q_THD, k_TKD, v_TKD, out_THD))
        no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device), torch.empty(0, device=q.device)
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            do, q, k, v, out, lse_HT.contiguous(), lengths.q_ends_N1, lengths.k_ends_N1, lengths.q_most,
            lengths.k_most, 0.0, lengths.diagonal, *no_dropout, scale=width**-0.5,
        )  # fmt: skip
        return dq[..., :width], dk[..., :width], dv[..., :width]


def _widened(x_THD: Tensor) -> Tensor:
    """Filled up with zeros to a width that the kernels take: they change no score."""
    return F.pad(x_THD, (0, -x_THD.shape[2] % _STEP)).contiguous()
