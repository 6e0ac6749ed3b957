"""Tests that the process group gets the formula's bytes, and that a lost rank is named instead of awaited."""

import os
import time
from datetime import timedelta

import pytest
import torch

from nemo_vfm.core.errors import LostRank
from nemo_vfm.parallel.context.attend import attend
from nemo_vfm.parallel.context.collectives import count_traffic
from nemo_vfm.parallel.context.kernel import MathAttention, TiledKernel
from nemo_vfm.parallel.context.scheme import AttentionSizes, Scheme, backward_bytes, forward_bytes
from tests.support.ranks import RankFailed, on_ranks

SCHEMES = [Scheme("all_gather"), Scheme("ring"), Scheme("ulysses"), Scheme("ring_ulysses", 2)]
SIZES = AttentionSizes(batch=2, heads=8, kv_heads=4, tokens=6, width=4, itemsize=4)


def tensors(sizes, dtype):
    shapes = [(sizes.batch, heads, sizes.tokens, sizes.width) for heads in (sizes.heads, sizes.kv_heads)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in (shapes[0], shapes[1], shapes[1])]


def watched(calls):
    """Note the bytes of what torch.distributed itself is handed; gives back a function that stops it."""
    import torch.distributed as dist

    names = ("batch_isend_irecv", "all_gather_single", "all_gather_into_tensor", "reduce_scatter_single",
             "reduce_scatter_tensor", "all_to_all_single", "all_reduce", "all_gather", "broadcast")  # fmt: skip
    kept = {name: getattr(dist, name) for name in names if hasattr(dist, name)}

    def batch(operations):
        calls.extend(call.tensor.nbytes for call in operations if call.op is dist.isend)
        return kept["batch_isend_irecv"](operations)

    def gather(name):
        return lambda output, own, **more: (calls.append(output.nbytes - own.nbytes), kept[name](output, own, **more))

    def scatter(name):
        return lambda output, own, **more: (calls.append(own.nbytes - output.nbytes), kept[name](output, own, **more))

    def unexpected(name):
        def call(*_, **__):
            raise AssertionError(f"{name} is not counted")

        return call

    for name in kept:
        make = gather if name.startswith("all_gather_") else scatter if name.startswith("reduce_") else unexpected
        setattr(dist, name, batch if name == "batch_isend_irecv" else make(name))
    return lambda: [setattr(dist, name, function) for name, function in kept.items()]


def traffic(rank, dtype, causal):
    """By scheme: (counted forward, counted backward, what torch.distributed was handed in both)."""
    import torch.distributed as dist

    found = []
    for scheme in SCHEMES:
        q, k, v = tensors(SIZES, dtype)
        handed = []
        stop = watched(handed)
        try:
            with count_traffic() as forward:
                out = attend(q, k, v, group=dist.group.WORLD, scheme=scheme, causal=causal)
            with count_traffic() as backward:
                out.sum().backward()
        finally:
            stop()
        found.append((forward.sent, backward.sent, sum(handed)))
    return found


@pytest.mark.cluster
@pytest.mark.parametrize(("ranks", "dtype", "causal"), [(2, torch.float32, True), (4, torch.bfloat16, False)])
def test_every_scheme_sends_the_bytes_of_its_formula(ranks, dtype, causal):
    sizes = AttentionSizes(SIZES.batch, SIZES.heads, SIZES.kv_heads, SIZES.tokens, SIZES.width, dtype.itemsize)
    for by_scheme in on_ranks(ranks, traffic, dtype, causal):
        for scheme, (forward, backward, handed) in zip(SCHEMES, by_scheme, strict=True):
            assert forward == forward_bytes(scheme, ranks, sizes), scheme
            assert backward == backward_bytes(scheme, ranks, sizes), scheme
            assert handed == forward + backward, scheme


class Falling(TiledKernel):
    """A kernel whose rank dies, or sleeps, in the middle of a ring."""

    def __init__(self, sleep_s=None):
        super().__init__(MathAttention())
        self.sleep_s, self.calls = sleep_s, 0

    def forward(self, *arguments):
        self.calls += 1
        if self.calls == 2 and self.sleep_s is None:
            os._exit(7)
        if self.calls == 2:
            time.sleep(self.sleep_s)
        super().forward(*arguments)


def hanging(rank):
    """What rank 1's neighbours say while it sleeps, and after how long."""
    import torch.distributed as dist

    group = dist.new_group([0, 1, 2], timeout=timedelta(seconds=2))
    kernel = Falling(sleep_s=9) if rank == 1 else TiledKernel(MathAttention())
    before = time.monotonic()
    try:
        for _ in range(2):
            attend(*tensors(SIZES, torch.float32), group=group, scheme=Scheme("ring"), kernel=kernel)
    except LostRank as error:
        return str(error), time.monotonic() - before
    return "", time.monotonic() - before


@pytest.mark.cluster  # several ranks
def test_a_rank_that_hangs_in_a_ring_is_named_within_the_timeout_of_its_group():
    said = on_ranks(3, hanging)
    text, waited_s = said[2]
    assert "rank 2 timed out waiting for rank 1, with which it shares a sequence over 3 ranks" in text
    assert waited_s < 8


def dying(rank):
    """Ranks 0 and 1 attend by a ring, 2 and 3 by gathering; 1 and 3 die on the way."""
    import torch.distributed as dist

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    scheme = Scheme("ring" if rank < 2 else "all_gather")
    kernel = Falling() if rank % 2 else TiledKernel(MathAttention())
    for _ in range(3):
        attend(*tensors(SIZES, torch.float32), group=pairs[rank // 2], scheme=scheme, kernel=kernel)


@pytest.mark.cluster  # several ranks
def test_a_rank_that_dies_ends_the_others_at_once_with_its_name():
    with pytest.raises(RankFailed) as error:  # which gives the others five seconds, of their group's sixty
        on_ranks(4, dying)
    text = str(error.value)
    assert "rank 1: its process ended with status 7" in text
    assert "LostRank: rank 0 timed out waiting for rank 1, with which it shares a sequence over 2 ranks" in text
    assert "LostRank: rank 2 timed out waiting for rank 3, with which" in text
