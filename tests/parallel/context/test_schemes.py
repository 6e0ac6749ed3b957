"""Tests that attention over ranks gives the values and gradients of one process, for every scheme."""

import random
from dataclasses import dataclass

import pytest
import torch

from nemo_vfm.parallel.context.attend import attend
from nemo_vfm.parallel.context.scheme import Scheme
from nemo_vfm.parallel.context.token_order import shard, unshard
from tests.support.ranks import on_ranks

ALL = [Scheme("all_gather"), Scheme("ring"), Scheme("ulysses"), Scheme("ring_ulysses", 2)]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


@dataclass(frozen=True)
class Case:
    """One attention; `tokens` on each rank."""

    ranks: int
    tokens: int
    heads: int
    kv_heads: int
    segments: tuple[int, ...] | None
    causal: bool
    dtype: torch.dtype
    seed: int

    def tensors(self):
        """(q, k, v, gradient of the result), of the whole sequence."""
        generator = torch.Generator().manual_seed(self.seed)
        length = self.tokens * self.ranks
        heads = (self.heads, self.kv_heads, self.kv_heads, self.heads)
        return [torch.randn(2, h, length, 8, generator=generator, dtype=self.dtype) for h in heads]


def cases(ranks, count, seed=0):
    """Drawn cases, half of them causal, half packed, with samples that cross ranks and samples shorter than one."""
    draw = random.Random(seed * 10 + ranks)
    found = []
    for number in range(count):
        tokens = 2 * draw.randint(1, 9)
        segments = None
        if number % 2:
            segments, left = [], tokens * ranks
            while left:
                segments.append(min(left, draw.choice((1, 2, 5, tokens, 2 * tokens + 1))))
                left -= segments[-1]
            segments = tuple(segments)
        heads, kv_heads = draw.choice(((4, 4), (8, 4), (4, 4)))
        dtype = torch.float32 if number % 5 == 4 else torch.float64
        found.append(Case(ranks, tokens, heads, kv_heads, segments, number % 4 > 1, dtype, number))
    return found


def whole(case):
    """(values, dq, dk, dv) in one process, in fp64, by a mask over all pairs."""
    q, k, v, do = (x.double() for x in case.tensors())
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    length = q.shape[2]
    owner = torch.repeat_interleave(torch.tensor(case.segments or (length,)))
    seen = owner[:, None] == owner[None, :]
    if case.causal:
        seen = seen.tril()
    shared = case.heads // case.kv_heads
    keys, values = (x.repeat_interleave(shared, 1) for x in (k, v))
    scores = (q @ keys.mT / q.shape[3] ** 0.5).masked_fill(~seen, float("-inf"))
    out = scores.softmax(-1) @ values
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), do)]


def split(rank, case, schemes):
    """(values, dq, dk, dv) of this rank, by scheme."""
    import torch.distributed as dist

    found = []
    for scheme in schemes:
        q, k, v, do = (shard(x, 2, rank=rank, ranks=case.ranks, causal=case.causal).clone() for x in case.tensors())
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        out = attend(q, k, v, group=dist.group.WORLD, scheme=scheme, causal=case.causal, segments=case.segments)
        assert out.dtype == case.dtype
        found.append([out.detach(), *torch.autograd.grad(out, (q, k, v), do)])
    return found


def worst(case, pieces, expected):
    """The largest difference of values and gradients, as a share of the largest number where that is above 1."""
    differences = []
    for index, right in enumerate(expected):
        found = unshard([piece[index] for piece in pieces], 2, causal=case.causal)
        differences.append(float((found.double() - right).abs().max() / right.abs().max().clamp(min=1)))
    return max(differences)


def many(rank, drawn, schemes):
    """All cases in one call: a call is dear, a case is not."""
    return [split(rank, case, schemes) for case in drawn]


@pytest.mark.cluster
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_scheme_gives_the_values_and_gradients_of_one_process(ranks):
    schemes = [scheme for scheme in ALL if ranks > 1 or scheme.ulysses == 1]
    drawn = cases(ranks, 16)
    by_rank = on_ranks(ranks, many, drawn, schemes)
    for number, case in enumerate(drawn):
        expected = whole(case)
        for index, scheme in enumerate(schemes):
            error = worst(case, [rank[number][index] for rank in by_rank], expected)
            assert error < TOLERANCE[case.dtype], (scheme, case, error)


def mixed_up(rank, case):
    """Causal tokens dealt out in runs, as if there were no causality."""
    import torch.distributed as dist

    q, k, v, _ = (shard(x, 2, rank=rank, ranks=case.ranks) for x in case.tensors())
    return attend(q, k, v, group=dist.group.WORLD, scheme=Scheme("ring"), causal=True)


@pytest.mark.cluster
def test_the_comparison_sees_tokens_that_lie_wrongly():
    case = Case(2, 8, 4, 4, None, True, torch.float64, 0)
    pieces = [[piece] for piece in on_ranks(2, mixed_up, case)]
    assert worst(case, pieces, whole(case)[:1]) > 1e-2
