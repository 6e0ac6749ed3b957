"""Computes a rank's attention over the whole sequence, whose keys and values go round a ring or are gathered at once.

In round t of a ring a rank holds the keys of the rank t places before it. It passes them on while it computes with them
(arXiv 2310.01889). Results merge by their lse as in arXiv 1805.02867. A single rank exchanges nothing.

Gathering is simpler, and faster for short sequences. But the keys and values of all ranks are in memory while a layer
computes. They are gathered again for the backward pass rather than kept (arXiv 2407.21783, 3.3.2, gathers likewise).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from nemo_vfm.parallel.context.collectives import PendingTransfers, Team, all_gather, exchange, reduce_scatter
from nemo_vfm.parallel.context.kernel import Gradients, Kernel, RunningSoftmax
from nemo_vfm.parallel.context.tiles import Spans, Tile, local_spans, tiles
from nemo_vfm.parallel.context.token_order import take_spans, unshard


@dataclass(frozen=True)
class AttentionCall:
    """One attention, beside its tensors."""

    team: Team | None  #: ranks that hold the sequence; None where this one holds all of it
    tokens: int  #: of each rank
    segments: tuple[int, ...]  #: lengths of consecutive samples over all ranks
    causal: bool  #: whether a query sees only its own and earlier positions; also how tokens lie on the ranks
    kernel: Kernel  #: computes tiles

    @property
    def ranks(self) -> int:
        """How many hold the sequence."""
        return self.team.size if self.team else 1

    @property
    def index(self) -> int:
        """This rank's place among them."""
        return self.team.index if self.team else 0

    def spans(self, index: int) -> Spans:
        """The positions that a rank holds."""
        return local_spans(index, self.ranks, self.tokens, self.causal)

    def tiles(self, keys: Spans) -> tuple[Tile, ...]:
        """What this rank's queries see of keys at these positions."""
        return tiles(self.spans(self.index), keys, self.segments, self.causal)


def save_for_backward(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], running: RunningSoftmax, call: AttentionCall
) -> Tensor:
    """The result, after keeping what the backward pass needs: this rank's own tensors and nothing of other ranks."""
    out, lse = running.result()
    ctx.save_for_backward(*inputs, out, lse)
    ctx.call = call
    return out


def cast(q: Tensor, sums: Tensor, kv_sums: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    """Gradients for (q, k, v, call), in the dtype of the tensors."""
    return sums.to(q.dtype), kv_sums[0].to(q.dtype), kv_sums[1].to(q.dtype), None


# Kernels run without autocast: it would round what they keep in fp32 on purpose, and differently in the two directions.


def ring(q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, call: AttentionCall) -> Tensor:
    """Attention of this rank's queries, (B, H, S, D)."""
    found: Tensor = _Ring.apply(q_BHSD, k_BKSD, v_BKSD, call)  # type: ignore[no-untyped-call]
    return found


class _Ring(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
        running = RunningSoftmax(q)
        with torch.autocast(q.device.type, enabled=False):
            for whose, kv in _visits(call, torch.stack((k, v))):
                call.kernel.forward(q, kv[0], kv[1], call.tiles(call.spans(whose)), running)
        return save_for_backward(ctx, (q, k, v), running, call)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        call: AttentionCall = ctx.call
        sums, travelling = Gradients(q, k), _TravellingGrads(call)
        with torch.autocast(q.device.type, enabled=False):
            for whose, kv in _visits(call, torch.stack((k, v))):
                call.kernel.backward(do, q, kv[0], kv[1], out, lse, call.tiles(call.spans(whose)), sums)
                travelling.add(whose, sums.kv_2BKLD)
                sums.kv_2BKLD = torch.zeros_like(sums.kv_2BKLD)  # for the keys of the next rank
        return cast(q, sums.q_BHSD, travelling.home())


def _visits(call: AttentionCall, own: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(whose, keys and values), this rank's first. The next ones travel while the caller computes with these."""
    held = own
    for turn in range(call.ranks):
        pending, incoming = None, held
        if call.team and turn < call.ranks - 1:
            incoming = torch.empty_like(held, memory_format=torch.contiguous_format)
            following, preceding = _neighbours(call)
            pending = exchange(call.team, {following: held}, {preceding: incoming})
        yield (call.index - turn) % call.ranks, held
        if pending:
            pending.wait()
        held = incoming


class _TravellingGrads:
    """Sums of dK and dV that follow their keys from rank to rank and end where those keys live.

    The sum for its own keys stays at home, so that the others need one hop less: n - 1, as many as the keys. A sum is
    waited for only after the next computation, which hides its way.
    """

    def __init__(self, call: AttentionCall) -> None:
        self._call = call
        self._own: Tensor | None = None
        self._pending: PendingTransfers | None = None
        self._arriving: Tensor | None = None

    def add(self, whose: int, share: Tensor) -> None:
        """Add this rank's share to the sum for these keys, and send it on."""
        if whose == self._call.index or self._call.team is None:
            self._own = share
            return
        share = self._receive(share)
        following, preceding = _neighbours(self._call)
        self._arriving = torch.empty_like(share, memory_format=torch.contiguous_format)
        self._pending = exchange(self._call.team, {following: share}, {preceding: self._arriving})

    def home(self) -> Tensor:
        """The sum over all ranks for this rank's keys and values."""
        assert self._own is not None
        return self._receive(self._own)

    def _receive(self, share: Tensor) -> Tensor:
        """With what the ranks before added, if any."""
        if self._pending and self._arriving is not None:
            self._pending.wait()
            share += self._arriving
        return share


def _neighbours(call: AttentionCall) -> tuple[int, int]:
    return (call.index + 1) % call.ranks, (call.index - 1) % call.ranks


def attend_gathered(q_BHSD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, call: AttentionCall) -> Tensor:
    """Attention of this rank's queries, (B, H, S, D)."""
    found: Tensor = _GatheredAttention.apply(q_BHSD, k_BKSD, v_BKSD, call)  # type: ignore[no-untyped-call]
    return found


class _GatheredAttention(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
        running, kv = RunningSoftmax(q), _everyones(k, v, call)
        with torch.autocast(q.device.type, enabled=False):
            call.kernel.forward(q, kv[0], kv[1], call.tiles(((0, kv.shape[_SEQUENCE]),)), running)
        return save_for_backward(ctx, (q, k, v), running, call)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        call: AttentionCall = ctx.call
        kv = _everyones(k, v, call)
        sums = Gradients(q, kv[0])
        with torch.autocast(q.device.type, enabled=False):
            seen = call.tiles(((0, kv.shape[_SEQUENCE]),))
            call.kernel.backward(do, q, kv[0], kv[1], out, lse, seen, sums)
        assert call.team is not None
        parts = [take_spans(sums.kv_2BKLD, call.spans(index), _SEQUENCE) for index in range(call.ranks)]
        return cast(q, sums.q_BHSD, reduce_scatter(call.team, torch.stack(parts)))


def _everyones(k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
    """All ranks' keys and values in the order of their positions, (2, B, K, L, D)."""
    assert call.team is not None
    return unshard(all_gather(call.team, torch.stack((k, v))).unbind(), _SEQUENCE, causal=call.causal)


_SEQUENCE = 3  # of (2, B, K, L, D)
