"""Computes the cross-entropy of each token, also where ranks hold parts of the vocabulary.

Cross-entropy of token i with target y is log sum_v exp(s_iv) - s_iy (natural logarithm). Over tensor ranks the largest
score, the sum and the target's score are one all-reduce each, of one number per token. The scores are never sent.
Shape letters: N tokens, V words of this rank.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from nemo_vfm.core.types.sample_batches import IGNORED
from nemo_vfm.parallel.layers.token_layout import active


def token_losses(scores_NV: Tensor, targets_N: Tensor) -> Tensor:
    """The cross-entropy of each token, fp32; 0 where the target is IGNORED.

    Args:
        scores_NV: of this rank's words, before softmax, of any float dtype. Their memory is used again in backward.
        targets_N: numbers of words, of the whole vocabulary.

    Returns:
        (N,), the same on all tensor ranks.
    """
    losses: Tensor = _CrossEntropy.apply(scores_NV, targets_N, active().tensor)  # type: ignore[no-untyped-call]
    return losses


class _CrossEntropy(torch.autograd.Function):
    """Keeps the scores and one number per token, no probabilities; backward writes the gradient over the scores.

    In runs of tokens, since fp32 copies of all scores would take several times the memory of everything else.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, targets: Tensor, group: ProcessGroup | None) -> Tensor:
        first = 0 if group is None else group.rank() * scores.shape[1]
        own = targets - first
        here = (own >= 0) & (own < scores.shape[1])
        own = own.clamp(0, scores.shape[1] - 1)
        top = all_reduce(scores.amax(1).float(), dist.ReduceOp.MAX, group)
        sums = torch.cat([(part.float() - at[:, None]).exp_().sum(1) for part, at in _runs(scores, top)])
        wanted = scores.gather(1, own[:, None])[:, 0].float() * here
        both = all_reduce(torch.stack([sums, wanted]), dist.ReduceOp.SUM, group)
        log_sum = top + both[0].log()
        ctx.save_for_backward(scores, own, here, log_sum, targets != IGNORED)
        return (log_sum - both[1]) * (targets != IGNORED)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        scores, own, here, log_sum, counted = ctx.saved_tensors
        scale = grads[0] * counted
        for (part, at), grad in zip(_runs(scores, log_sum), torch.split(scale, _RUN), strict=True):
            part.copy_((part.float() - at[:, None]).exp_().mul_(grad[:, None]))
        # Not scatter_add_, which on a CPU makes an fp32 copy of all 16-bit scores (torch 2.13).
        token = torch.arange(len(own), device=own.device)
        scores[token, own] = (scores[token, own].float() - scale * here).to(scores.dtype)
        return scores, None, None


_RUN = 256  # tokens at a time: 32,000 words in fp32 are 33 MB, which mostly stays in cache


def _runs(scores: Tensor, numbers: Tensor) -> "zip[tuple[Tensor, Tensor]]":
    return zip(torch.split(scores, _RUN), torch.split(numbers, _RUN), strict=True)


def all_reduce(x: Tensor, how: Any, group: ProcessGroup | None) -> Tensor:
    """In place, where there is a group; outside of autograd."""
    if group is not None:
        dist.all_reduce(x, op=how, group=group)
    return x
