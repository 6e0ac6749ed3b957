"""Describes one attention call beside its tensors: which ranks take part, and how."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from nemo_vfm.parallel.context.collectives import Team
from nemo_vfm.parallel.context.kernel import Kernel, RunningSoftmax
from nemo_vfm.parallel.context.tiles import Spans, Tile, held, tiles


@dataclass(frozen=True)
class Call:
    """One attention, beside its tensors.

    Args:
        team: ranks that hold the sequence; None where this one holds all of it.
        tokens: of each rank.
        segments: lengths of consecutive samples over all ranks.
        causal: whether a query sees only its own and earlier positions; also how tokens lie on the ranks.
        kernel: computes tiles.
    """

    team: Team | None
    tokens: int
    segments: tuple[int, ...]
    causal: bool
    kernel: Kernel

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
        return held(index, self.ranks, self.tokens, self.causal)

    def tiles(self, keys: Spans) -> tuple[Tile, ...]:
        """What this rank's queries see of keys at these positions."""
        return tiles(self.spans(self.index), keys, self.segments, self.causal)


def applied(function: type[Function], q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """What an autograd function gives for one attention."""
    found = function.apply(q, k, v, call)  # type: ignore[no-untyped-call]
    assert isinstance(found, Tensor)
    return found


def saved(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], running: RunningSoftmax, call: Call) -> Tensor:
    """The result, after keeping what the backward pass needs: this rank's own tensors and nothing of other ranks."""
    out, lse = running.result()
    ctx.save_for_backward(*inputs, out, lse)
    ctx.call = call
    return out


def cast(q: Tensor, sums: Tensor, kv_sums: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    """Gradients for (q, k, v, call), in the dtype of the tensors."""
    return sums.to(q.dtype), kv_sums[0].to(q.dtype), kv_sums[1].to(q.dtype), None


@contextmanager
def own_precision(q: Tensor) -> Iterator[None]:
    """Without autocast: it would round what kernels keep in fp32 on purpose, and differently in the two directions."""
    with torch.autocast(q.device.type, enabled=False):
        yield
