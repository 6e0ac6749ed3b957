"""Tests the temporal all-to-all of a split video: tokens, gradients and bytes arrive as computed."""

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.context.attend import attend
from nemo_vfm.parallel.context.collectives import count_traffic
from nemo_vfm.parallel.context.scheme import Scheme
from nemo_vfm.parallel.context.token_order import shard, unshard
from nemo_vfm.parallel.layers.temporal_all_to_all import to_sequence, to_temporal
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.cluster  # several ranks

B, T, P, D = 2, 4, 8, 6


def video(seed=0):
    return torch.randn(B, T * P, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixed(x, heads=2):
    """Attention of (N, S, D) with itself, on one device: stands for a layer that mixes positions."""
    q = x.unflatten(2, (heads, -1)).transpose(1, 2)
    return attend(q, q, q, group=None, scheme=Scheme()).transpose(1, 2).flatten(2)


def layer(x, group):
    """Attention over everything, then over time, then over space, as the paper stacks them."""
    q = x.unflatten(2, (2, -1)).transpose(1, 2)
    x = x + attend(q, 2 * q, q, group=group, scheme=Scheme("ring")).transpose(1, 2).flatten(2)
    x = x + to_sequence(mixed(to_temporal(x, frames=T, group=group)), batch=B, group=group)
    return x + mixed(x.reshape(-1, P, D)).unflatten(0, (B, -1)).flatten(1, 2)


def on_a_rank(rank, ranks):
    import torch.distributed as dist

    group = dist.group.WORLD
    x, weights = (shard(video(seed), 1, rank=rank, ranks=ranks).clone() for seed in (0, 1))
    x.requires_grad_()
    with count_traffic() as traffic:
        lines = to_temporal(x, frames=T, group=group)
        back = to_sequence(lines, batch=B, group=group)
    sent = traffic.sent
    with count_traffic() as traffic:
        torch.autograd.grad(back.sum(), x)
    out = layer(x, group)
    return lines.detach(), back.detach(), out.detach(), torch.autograd.grad(out, x, weights)[0], sent, traffic.sent


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_layer_of_three_attentions_gives_the_numbers_of_one_process(ranks):
    found = on_ranks(ranks, on_a_rank, ranks)
    whole = video().requires_grad_()
    expected = layer(whole, None)
    (gradient,) = torch.autograd.grad(expected, whole, video(1))
    torch.testing.assert_close(unshard([rank[2] for rank in found], 1), expected.detach(), rtol=0, atol=1e-10)
    torch.testing.assert_close(unshard([rank[3] for rank in found], 1), gradient, rtol=0, atol=1e-10)


def test_a_time_line_has_all_frames_of_its_place_in_order():
    found = on_ranks(2, on_a_rank, 2)
    lines = video().view(B, T, P, D).transpose(1, 2)
    for rank, (got, back, *_) in enumerate(found):
        share = lines[:, rank * P // 2 : (rank + 1) * P // 2].flatten(0, 1)
        torch.testing.assert_close(got, share, rtol=0, atol=0)
        torch.testing.assert_close(back, shard(video(), 1, rank=rank, ranks=2), rtol=0, atol=0)


@pytest.mark.parametrize("ranks", [2, 4])
def test_both_ways_send_what_the_formula_says_and_their_gradients_as_much(ranks):
    own = video().nbytes // ranks
    for *_, forward, backward in on_ranks(ranks, on_a_rank, ranks):
        assert forward == backward == 2 * own * (ranks - 1) / ranks


def refused(rank, frames, tokens):
    import torch.distributed as dist

    with pytest.raises(UserError) as error:
        to_temporal(torch.zeros(1, tokens, 2), frames=frames, group=dist.group.WORLD)
    return str(error.value)


def test_what_does_not_divide_is_refused_with_its_numbers():
    assert "5 frames are not divisible by 2 context ranks" in on_ranks(2, refused, 5, 10)[0]
    assert "a frame of 9 tokens is not divisible by 2 context ranks" in on_ranks(2, refused, 4, 18)[0]
    assert "7 tokens on each of 2 ranks are not 2 whole frames" in on_ranks(2, refused, 4, 7)[0]
