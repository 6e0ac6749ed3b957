"""Exchanges some tokens of all heads for all tokens of some heads, and back; gradients take the reverse way.

Any attention in between is then a local one over the team's tokens (arXiv 2309.14509).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from nemo_vfm.parallel.context.collectives import Team, exchange
from nemo_vfm.parallel.context.tiles import Spans
from nemo_vfm.parallel.context.token_order import merge_in_order, split

_HEADS, _TOKENS = 1, 2  # of (B, H, S, D)


def to_heads(team: Team, spans: tuple[Spans, ...], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Each (B, H, S, D) as (B, H / n, n S, D) by one message to each rank, tokens in the order of their positions."""
    return tuple(_ToHeads.apply(team, spans, *tensors))  # type: ignore[no-untyped-call]


def to_tokens(team: Team, spans: tuple[Spans, ...], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The way back: each (B, H / n, n S, D) as (B, H, S, D)."""
    return tuple(_ToTokens.apply(team, spans, *tensors))  # type: ignore[no-untyped-call]


class _ToHeads(Function):
    @staticmethod
    def forward(ctx: Any, team: Team, spans: tuple[Spans, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.team, ctx.spans = team, spans
        shares = [tensor.chunk(team.size, _HEADS) for tensor in tensors]
        received = _all_to_all(team, [[share[member] for share in shares] for member in range(team.size)])
        return tuple(merge_in_order(pieces, spans, _TOKENS) for pieces in zip(*received, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *to_tokens(ctx.team, ctx.spans, grads)


class _ToTokens(Function):
    @staticmethod
    def forward(ctx: Any, team: Team, spans: tuple[Spans, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.team, ctx.spans = team, spans
        shares = [split(tensor, spans, _TOKENS) for tensor in tensors]
        received = _all_to_all(team, [[share[member] for share in shares] for member in range(team.size)])
        return tuple(torch.cat(pieces, _HEADS) for pieces in zip(*received, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *to_heads(ctx.team, ctx.spans, grads)


def _all_to_all(team: Team, shares: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """`shares[i]` for member i in, what each member had for this one out: all are shaped alike."""
    mine, others = team.index, [member for member in range(team.size) if member != team.index]
    sent = {member: torch.cat([share.flatten() for share in shares[member]]) for member in others}
    came = {member: torch.empty_like(message) for member, message in sent.items()}
    exchange(team, sent, came).wait()
    shapes = [share.shape for share in shares[mine]]
    sizes = [shape.numel() for shape in shapes]
    return [
        list(shares[mine]) if member == mine
        else [part.view(shape) for part, shape in zip(torch.split_with_sizes(came[member], sizes), shapes, strict=True)]
        for member in range(team.size)
    ]  # fmt: skip
