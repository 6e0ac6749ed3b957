"""Computes a language model's last linear and the cross-entropy of its scores in one, without all scores in memory.

A run of tokens at a time has scores, losses and, where the tokens' weights are known beforehand, gradients. With p the
probabilities over words, y the target's one-hot vector and w the token's weight, the gradient of sum_i w_i loss_i is
w (p - y) W for x and the sum of w (p - y)^T x for the matrix W. So what waits for backward is as large as x and W.
Shape letters: B batch, S tokens of a row, N tokens, V words of this rank, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from nemo_vfm.core.types.sample_batches import IGNORED
from nemo_vfm.parallel.layers.linear import Linear, emulated_dtype
from nemo_vfm.parallel.layers.token_layout import active
from nemo_vfm.parallel.layers.vocab_parallel_loss import all_reduce, token_losses

#: Scores of fewer words of this rank are made as one: they are no burden, and small recipes keep their bits. Under bf16
#: on a CPU, 32,000 words take 1.2 times as long by runs, 64,000 as long as at once.
_LARGE = 50_000
#: Tokens of a run. On a GPU each run reads and writes the matrix's gradient, which fewer tokens would not outweigh.
_RUN_ON_GPU = 1024
#: Scores of a run on a CPU: 60 MB in fp32. Half as many take a tenth longer, since products want rows.
_SCORES = 15_000_000


def linear_token_losses(head: nn.Module, x_BSD: Tensor, targets_BS: Tensor, weight_BS: Tensor | None = None) -> Tensor:
    """The cross-entropy of each token under the scores `head(x_BSD)`.

    Args:
        head: the last linear. One that is not a plain `Linear`, whole or split by columns, has all scores in memory.
        x_BSD: this rank's tokens; fewer than targets where tensor ranks share them (sequence parallelism).
        targets_BS: numbers of words, of the whole vocabulary; IGNORED has no loss.
        weight_BS: what each token's loss counts in the sum, up to one factor. If the gradient that arrives is not in
            proportion to it, those that leave are NaN. Without it backward makes the scores once more.

    Returns:
        (B, S) of targets, fp32, the same on all tensor ranks; 0 where the target is IGNORED.
    """
    group, targets_N = active().tensor, targets_BS.flatten()
    ranks = 1 if group is None else group.size()
    if type(head) is not Linear or head.weight.shape[0] // ranks < _LARGE:
        return token_losses(head(x_BSD).flatten(0, 1), targets_N).view(targets_BS.shape)
    for hook in head._forward_pre_hooks.values():  # what brings all tokens here, where the matrix is split by columns
        x_BSD = hook(head, (x_BSD,))
    weight_VD: Tensor = head.weight
    if group is not None:
        from torch.distributed.tensor import DTensor, Partial

        assert isinstance(x_BSD, DTensor) and isinstance(weight_VD, DTensor)
        x_BSD, weight_VD = x_BSD.to_local(grad_placements=[Partial()]), weight_VD.to_local()
    kind, rounded = x_BSD.device.type, emulated_dtype(x_BSD)
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_BSD.dtype
    how = _Arithmetic(autocast, rounded is not None, group)
    weight_N = None if weight_BS is None else weight_BS.flatten().float()
    with torch.autocast(kind, enabled=False):
        losses: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            x_BSD.flatten(0, 1), weight_VD, targets_N, weight_N, how
        )
    return losses.view(targets_BS.shape)


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    """How products are computed."""

    dtype: torch.dtype  #: of their operands and results
    emulated: bool  #: rounded to it and multiplied in fp32, on a CPU that cannot multiply it
    group: ProcessGroup | None  #: the ranks that hold the other words

    def operand(self, x: Tensor) -> Tensor:
        """As the products take it."""
        return x.to(self.dtype).float() if self.emulated else x.to(self.dtype)


class _LinearCrossEntropy(torch.autograd.Function):
    """Token losses of x W^T, whose gradients are made in forward where the tokens' weights are known."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, weight_N: Tensor | None, how: _Arithmetic
    ) -> Tensor:  # fmt: skip
        ctx.how, ctx.early, ctx.dtypes = how, weight_N is not None, (x.dtype, weight.dtype)
        counted = targets != IGNORED
        weight_N = None if weight_N is None or not any(ctx.needs_input_grad) else weight_N * counted
        losses, *gradients = _run_by_run(x, weight, targets, weight_N, how, ctx.needs_input_grad)
        if ctx.early:
            ctx.save_for_backward(counted, weight_N)
            ctx.gradients = gradients  # not saved tensors: those are held, so autograd would copy them into .grad
        else:
            ctx.save_for_backward(x, weight, targets)
        return losses * counted

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        if ctx.early:
            counted, weight_N = ctx.saved_tensors
            of_x, of_weight = ctx.gradients
            del ctx.gradients
            arrived = grads[0] * counted
            heaviest = weight_N.argmax()
            factor = arrived.take(heaviest) / weight_N.take(heaviest).clamp_min(1e-30)
            apart = (arrived - factor * weight_N).abs().amax() > 1e-4 * arrived.abs().amax()
            factor = factor.where(~apart, torch.nan)  # to ask the device here would make the host wait
            for one in (of_x, of_weight):
                if one is not None:
                    one.mul_(factor)
        else:
            x, weight, targets = ctx.saved_tensors
            arrived = grads[0] * (targets != IGNORED)
            _, of_x, of_weight = _run_by_run(x, weight, targets, arrived, ctx.how, ctx.needs_input_grad)
        of_x, of_weight = (
            None if of_x is None else of_x.to(ctx.dtypes[0]),
            None if of_weight is None else of_weight.to(ctx.dtypes[1]),
        )
        return of_x, of_weight, None, None, None


def _run_by_run(
    x: Tensor, weight: Tensor, targets: Tensor, weight_N: Tensor | None, how: _Arithmetic, needs: Sequence[bool]
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Losses, and with weights the gradients that are needed, of x and of the matrix."""
    matrix, run = how.operand(weight), _RUN_ON_GPU if x.is_cuda else max(1, _SCORES // len(weight))
    of_x = torch.empty_like(x) if weight_N is not None and needs[0] else None
    of_weight = torch.zeros_like(weight, dtype=torch.float32) if weight_N is not None and needs[1] else None
    losses = []
    for begin in range(0, len(x), run):
        at = slice(begin, begin + run)
        operand = how.operand(x[at])
        loss, gradient = _one_run(operand, matrix, targets[at], None if weight_N is None else weight_N[at], how)
        losses.append(loss)
        if gradient is None:
            continue
        if of_x is not None:
            of_x[at] = gradient @ matrix
        if of_weight is not None and gradient.dtype == torch.float32:
            of_weight.addmm_(gradient.T, operand)
        elif of_weight is not None:
            on_gpu = gradient.is_cuda  # elsewhere a product of 16-bit operands is rounded before it is added
            of_weight.add_(torch.mm(gradient.T, operand, torch.float32) if on_gpu else gradient.T @ operand)
        del gradient  # before the next run's scores
    return torch.cat(losses), of_x, of_weight


def _one_run(
    x: Tensor, matrix: Tensor, targets: Tensor, weight_N: Tensor | None, how: _Arithmetic
) -> tuple[Tensor, Tensor | None]:
    """Losses, and with weights the gradient of the scores, in the scores' own memory where they are fp32."""
    words = len(matrix)
    own = targets - (0 if how.group is None else how.group.rank() * words)
    here, own = (own >= 0) & (own < words), own.clamp(0, words - 1)
    scores = (x @ matrix.T).to(how.dtype)
    top = all_reduce(scores.amax(1).float(), dist.ReduceOp.MAX, how.group)
    wanted = scores.gather(1, own[:, None])[:, 0].float() * here
    likely = scores.sub_(top[:, None]) if scores.dtype == torch.float32 else scores - top[:, None]  # fp32
    sums = likely.exp_().sum(1)
    sums, wanted = all_reduce(torch.stack([sums, wanted]), dist.ReduceOp.SUM, how.group)
    losses = top + sums.log() - wanted
    if weight_N is None:
        return losses, None
    likely.mul_((weight_N / sums)[:, None])
    likely[torch.arange(len(own), device=own.device), own] -= weight_N * here
    return losses, how.operand(scores.copy_(likely))
