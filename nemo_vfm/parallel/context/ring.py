"""Computes a rank's attention over the whole sequence by passing keys and values around a ring.

In round t a rank holds the keys of the rank t places before it. It passes them on while it computes with them (arXiv
2310.01889). Results merge by their lse as in arXiv 1805.02867. A single rank exchanges nothing.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from nemo_vfm.parallel.context.attention_call import Call, applied, cast, own_precision, saved
from nemo_vfm.parallel.context.collectives import Pending, empty_like, exchange
from nemo_vfm.parallel.context.kernel import Gradients, RunningSoftmax


def ring(q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, call: Call) -> Tensor:
    """Attention of this rank's queries, (B, H, S, D)."""
    return applied(_Ring, q_BHSD, k_BKSD, v_BKSD, call)


class _Ring(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        running = RunningSoftmax(q)
        with own_precision(q):
            for whose, kv in _visits(call, torch.stack((k, v))):
                call.kernel.forward(q, kv[0], kv[1], call.tiles(call.spans(whose)), running)
        return saved(ctx, (q, k, v), running, call)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        call: Call = ctx.call
        sums, travelling = Gradients(q, k), _Travelling(call)
        with own_precision(q):
            for whose, kv in _visits(call, torch.stack((k, v))):
                call.kernel.backward(do, q, kv[0], kv[1], out, lse, call.tiles(call.spans(whose)), sums)
                travelling.add(whose, sums.next_keys())
        return cast(q, sums.q_BHSD, travelling.home())


def _visits(call: Call, own: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(whose, keys and values), this rank's first. The next ones travel while the caller computes with these."""
    held = own
    for turn in range(call.ranks):
        pending, incoming = None, held
        if call.team and turn < call.ranks - 1:
            incoming = empty_like(held)
            following, preceding = _neighbours(call)
            pending = exchange(call.team, {following: held}, {preceding: incoming})
        yield (call.index - turn) % call.ranks, held
        if pending:
            pending.wait()
        held = incoming


class _Travelling:
    """Sums of dK and dV that follow their keys from rank to rank and end where those keys live.

    The sum for its own keys stays at home, so that the others need one hop less: n - 1, as many as the keys. A sum is
    waited for only after the next computation, which hides its way.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._own: Tensor | None = None
        self._pending: Pending | None = None
        self._arriving: Tensor | None = None

    def add(self, whose: int, share: Tensor) -> None:
        """Add this rank's share to the sum for these keys, and send it on."""
        if whose == self._call.index or self._call.team is None:
            self._own = share
            return
        share = self._received(share)
        following, preceding = _neighbours(self._call)
        self._arriving = empty_like(share)
        self._pending = exchange(self._call.team, {following: share}, {preceding: self._arriving})

    def home(self) -> Tensor:
        """The sum over all ranks for this rank's keys and values."""
        assert self._own is not None
        return self._received(self._own)

    def _received(self, share: Tensor) -> Tensor:
        """With what the ranks before added, if any."""
        if self._pending and self._arriving is not None:
            self._pending.wait()
            share += self._arriving
        return share


def _neighbours(call: Call) -> tuple[int, int]:
    return (call.index + 1) % call.ranks, (call.index - 1) % call.ranks
