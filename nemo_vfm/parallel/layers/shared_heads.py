"""Lets several tensor ranks use one head of keys and values, where there are fewer heads than ranks.

As in Megatron-Core, the weights stay split evenly, so each is held once. The ranks of one head exchange the outputs of
their parts of the linear. Every rank then has the head's key and value, and takes its share of the queries. In the
backward pass the gradients of these copies are added up.
Shape letters: B batch, S tokens, F features of a group (queries, key, value), G groups, Q queries of a group,
E head dimension.
"""

from typing import Any

import torch
from torch import Tensor

from nemo_vfm.parallel.layers.uncompiled import uncompiled
from nemo_vfm.parallel.layers.token_layout import SharedHead, active


def whole_groups(qkv_BSF: Tensor) -> Tensor:
    """Queries, key and value of whole groups, from this rank's even part of them."""
    shared = active().shared_head
    if shared is None:
        return qkv_BSF
    gathered: Tensor = _gathered(qkv_BSF, shared)
    return gathered


def own_queries(q_BSGQE: Tensor) -> Tensor:
    """Those that this rank attends with; all where no other rank has the same key."""
    shared = active().shared_head
    if shared is None:
        return q_BSGQE
    each = q_BSGQE.shape[3] // shared.ranks
    return q_BSGQE.narrow(3, shared.rank * each, each)


@uncompiled  # messages between ranks
def _gathered(qkv_BSF: Tensor, shared: SharedHead) -> Tensor:
    found: Tensor = _Gather.apply(qkv_BSF, shared)  # type: ignore[no-untyped-call]
    return found


class _Gather(torch.autograd.Function):
    """All parts along the last dimension; backward sums over the ranks and keeps the own part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shared: SharedHead) -> Tensor:
        ctx.shared = shared
        return torch.cat(list(_parts(x, shared)), -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _summed(torch.stack(grads[0].chunk(ctx.shared.ranks, -1)), ctx.shared), None


def _parts(x: Tensor, shared: SharedHead) -> Tensor:
    if shared.group is None:
        return x.new_empty(shared.ranks, *x.shape)
    from nemo_vfm.parallel.context.collectives import all_gather, everyone

    return all_gather(everyone(shared.group), x)


def _summed(parts: Tensor, shared: SharedHead) -> Tensor:
    if shared.group is None:
        return torch.empty_like(parts[0])
    from nemo_vfm.parallel.context.collectives import everyone, reduce_scatter

    return reduce_scatter(everyone(shared.group), parts)
