"""Computes a rank's attention over the whole sequence by gathering all keys and values on every rank at once.

This is simpler than a ring and faster for short sequences. But the keys and values of all ranks are in memory while a
layer computes. They are gathered again for the backward pass rather than kept (arXiv 2407.21783, 3.3.2, gathers
likewise).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from nemo_vfm.parallel.context.attention_call import Call, applied, cast, own_precision, saved
from nemo_vfm.parallel.context.collectives import all_gather, reduce_scatter
from nemo_vfm.parallel.context.kernel import Gradients, RunningSoftmax
from nemo_vfm.parallel.context.token_order import taken, unshard

_SEQUENCE = 3  # of (2, B, K, L, D)


def gathered(q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, call: Call) -> Tensor:
    """Attention of this rank's queries, (B, H, S, D)."""
    return applied(_Gathered, q_BHSD, k_BKSD, v_BKSD, call)


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        running, kv = RunningSoftmax(q), _everyones(k, v, call)
        with own_precision(q):
            call.kernel.forward(q, kv[0], kv[1], call.tiles(((0, kv.shape[_SEQUENCE]),)), running)
        return saved(ctx, (q, k, v), running, call)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        call: Call = ctx.call
        kv = _everyones(k, v, call)
        sums = Gradients(q, kv[0])
        with own_precision(q):
            seen = call.tiles(((0, kv.shape[_SEQUENCE]),))
            call.kernel.backward(do, q, kv[0], kv[1], out, lse, seen, sums)
        return cast(q, sums.q_BHSD, _brought_home(sums.kv_2BKLD, call))


def _everyones(k: Tensor, v: Tensor, call: Call) -> Tensor:
    """All ranks' keys and values in the order of their positions, (2, B, K, L, D)."""
    assert call.team is not None
    return unshard(all_gather(call.team, torch.stack((k, v))).unbind(), _SEQUENCE, causal=call.causal)


def _brought_home(sums: Tensor, call: Call) -> Tensor:
    """What all ranks have for this rank's keys and values."""
    assert call.team is not None
    parts = [taken(sums, call.spans(index), _SEQUENCE) for index in range(call.ranks)]
    return reduce_scatter(call.team, torch.stack(parts))
