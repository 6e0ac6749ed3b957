"""Splits a model's tokens over ranks and gathers them again. On one device nothing changes.

A model calls `split_tokens` once before its first linear, `gather_tokens` once after its last, and `split_context` for
tensors that only attention reads (positions). In between it holds 1 / T of the tokens. So the gradient of every
parameter that all T ranks hold is a part of a sum, which the engine adds up. The gradient of `gather_tokens` is the own
part alone, since every rank computes the same loss on all tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

if TYPE_CHECKING:
    from nemo_vfm.parallel.context.scheme import Scheme


@dataclass(frozen=True, slots=True)
class SharedHead:
    """The ranks that use one head of keys and values."""

    ranks: int  #: how many there are
    rank: int = 0  #: which of them this is
    #: what they exchange over; None where only sizes matter and nothing is exchanged
    group: ProcessGroup | None = None


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """How the tokens of a sequence lie on this process and its peers."""

    #: the ranks that hold one sequence between them, context outer, tensor inner; None where this holds all
    tokens: ProcessGroup | None = None
    #: the ranks among which attention must exchange; None where this one's tokens are all
    context: ProcessGroup | None = None
    scheme: "Scheme | None" = None  #: how they do
    #: the ranks that hold parts of the large linears, of a vocabulary too; None where this one holds all
    tensor: ProcessGroup | None = None
    #: those of them that use one head of keys and values; None where this rank has whole ones
    shared_head: SharedHead | None = None
    #: the ranks that must run the same blocks at the same time, where blocks may be left out; None where this one
    #: decides alone
    lockstep: ProcessGroup | None = None


_ALONE = TokenLayout()
_ACTIVE = [_ALONE]


def active() -> TokenLayout:
    """The layout that the model is called under."""
    return _ACTIVE[-1]


@contextmanager
def under(layout: TokenLayout) -> Iterator[None]:
    """Call models under a layout."""
    _ACTIVE.append(layout)
    try:
        yield
    finally:
        _ACTIVE.pop()


def call_within(model: nn.Module, *contexts: Callable[[], AbstractContextManager[object]]) -> None:
    """Register hooks that run the model's forward within contexts, the first outermost."""
    entered: list[ExitStack] = []

    def before(*_: object) -> None:
        entered.append(ExitStack())
        for context in contexts:
            entered[-1].enter_context(context())

    def after(*_: object) -> None:
        entered.pop().close()

    model.register_forward_pre_hook(before, prepend=True)
    model.register_forward_hook(after, always_call=True)


def split_tokens(x: Tensor, dim: int) -> Tensor:
    """This rank's part of the tokens along `dim`. ValueError if the tokens cannot be divided."""
    return _part(x, dim, active().tokens)


def split_context(x: Tensor, dim: int) -> Tensor:
    """The part of the tokens that this rank's attention sees as queries: the tensor ranks' parts together."""
    return _part(x, dim, active().context)


def divisor() -> int:
    """What the number of tokens must be a multiple of."""
    group = active().tokens
    return 1 if group is None else group.size()


def span_of_context(size: int) -> tuple[int, int]:
    """Of `size` tokens, where `split_context` begins and ends."""
    group = active().context
    if group is None:
        return 0, size
    each = size // group.size()
    return group.rank() * each, (group.rank() + 1) * each


def gather_tokens(x: Tensor, dim: int, *, causal: bool = False) -> Tensor:
    """All tokens along `dim`, on every rank; causal ones are those that `split_causal` has dealt to context ranks."""
    group = active().context if causal else active().tokens
    if group is None:
        return x
    gathered: Tensor = GatherTokens.apply(x, dim, group, causal)  # type: ignore[no-untyped-call]
    return gathered


def sum_over_tokens(x: Tensor) -> Tensor:
    """The sum of what ranks that share a sequence's tokens have; outside of autograd."""
    return _all_reduce(x, active().tokens, torch.distributed.ReduceOp.SUM)


def greatest_in_lockstep(x: Tensor) -> Tensor:
    """The greatest of what ranks that run the same blocks have; outside of autograd."""
    return _all_reduce(x, active().lockstep, torch.distributed.ReduceOp.MAX)


def _all_reduce(x: Tensor, group: ProcessGroup | None, how: "torch.distributed.ReduceOp.RedOpType") -> Tensor:
    if group is None:
        return x
    whole = x.clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(whole, op=how, group=group)
    return whole


def all_parts(x: Tensor, group: ProcessGroup) -> list[Tensor]:
    """What each rank of the group has, by rank; outside of autograd."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())]
    torch.distributed.all_gather(parts, x.contiguous(), group=group)
    return parts


def require_divided(size: int, count: int) -> None:
    """Refuse a number of tokens that so many ranks cannot share."""
    if size % count:
        raise ValueError(
            f"{size} tokens cannot be divided among {count} ranks (parallel.context, times parallel.tensor where "
            f"parallel.sequence is on). Change the degrees, or the clip's size: {size // count * count} or "
            f"{(size // count + 1) * count} tokens would fit"
        )


def _part(x: Tensor, dim: int, group: ProcessGroup | None) -> Tensor:
    if group is None:
        return x
    count, size = group.size(), x.shape[dim]
    require_divided(size, count)
    return x.narrow(dim, group.rank() * (size // count), size // count)


class GatherTokens(torch.autograd.Function):
    """All ranks' tokens in their order, causal ones from an early and a late chunk; backward keeps the own part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: ProcessGroup, causal: bool) -> Tensor:
        """Of this rank's part along `dim`."""
        from nemo_vfm.parallel.context.token_order import unshard

        ctx.how = dim, group, causal
        return unshard(all_parts(x, group), dim, causal=causal)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        """Every rank computes the same loss on all tokens, so nothing is summed."""
        from nemo_vfm.parallel.context.token_order import shard

        dim, group, causal = ctx.how
        return shard(grads[0], dim, rank=group.rank(), ranks=group.size(), causal=causal), None, None, None
