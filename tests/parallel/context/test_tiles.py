"""Tests that tiles cover exactly the pairs that may see each other, and that every token lies on one rank."""

import random

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.context.tiles import Tile, checked_segments, local_spans, tiles
from nemo_vfm.parallel.context.token_order import merge_in_order, shard, split, unshard


def positions(spans):
    return [position for start, stop in spans for position in range(start, stop)]


def drawn(seed):
    """(ranks, tokens of each, segments, causal)."""
    draw = random.Random(seed)
    ranks, tokens = draw.randint(1, 4), 2 * draw.randint(1, 6)
    segments, left = [], ranks * tokens
    while left:
        segments.append(min(left, draw.randint(1, 9)))
        left -= segments[-1]
    return ranks, tokens, tuple(segments), draw.random() < 0.6


@pytest.mark.parametrize("seed", range(200))
def test_tiles_cover_each_pair_that_may_meet_once_and_no_other(seed):
    ranks, tokens, segments, causal = drawn(seed)
    owner = [index for index, size in enumerate(segments) for _ in range(size)]
    for one in range(ranks):
        for other in range(ranks):
            q_spans, k_spans = local_spans(one, ranks, tokens, causal), local_spans(other, ranks, tokens, causal)
            expected = {
                (row, column)
                for row, q in enumerate(positions(q_spans))
                for column, k in enumerate(positions(k_spans))
                if owner[q] == owner[k] and (k <= q or not causal)
            }
            found = [pair for tile in tiles(q_spans, k_spans, segments, causal) for pair in pairs(tile)]
            assert len(found) == len(set(found))
            assert set(found) == expected


def pairs(tile):
    assert tile.q_start < tile.q_stop and tile.k_start < tile.k_stop
    assert not tile.diagonal or tile.q_stop - tile.q_start == tile.k_stop - tile.k_start
    return [
        (row, column)
        for row in range(tile.q_start, tile.q_stop)
        for column in range(tile.k_start, tile.k_stop)
        if not tile.diagonal or column - tile.k_start <= row - tile.q_start
    ]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_causal_work_is_the_same_on_every_rank_in_every_round(ranks):
    def work(rank, turn):
        keys = local_spans((rank - turn) % ranks, ranks, 8, True)
        return sum(len(pairs(tile)) for tile in tiles(local_spans(rank, ranks, 8, True), keys, (8 * ranks,), True))

    for turn in range(ranks):
        assert len({work(rank, turn) for rank in range(ranks)}) == 1


def test_a_round_of_a_causal_ring_is_one_product():
    early, late = local_spans(0, 2, 8, True), local_spans(1, 2, 8, True)
    assert tiles(late, early, (16,), True) == (Tile(0, 8, 0, 4),)
    assert tiles(early, late, (16,), True) == (Tile(4, 8, 0, 8),)


def test_samples_that_do_not_meet_cost_nothing():
    assert tiles(((0, 8),), ((8, 16),), (8, 8), False) == ()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shares_put_together_are_the_sequence(ranks, causal):
    x = torch.arange(2 * 12 * 3).view(2, 12, 3)
    pieces = [shard(x, 1, rank=rank, ranks=ranks, causal=causal) for rank in range(ranks)]
    assert torch.equal(unshard(pieces, 1, causal=causal), x)


def test_a_team_of_some_ranks_joins_and_splits_its_share_of_a_causal_sequence():
    x = torch.arange(32)
    spans = [local_spans(rank, 4, 8, True) for rank in (2, 3)]
    pieces = [torch.cat([x[start:stop] for start, stop in of_rank]) for of_rank in spans]
    whole = merge_in_order(pieces, spans, 0)
    assert torch.equal(whole, whole.sort().values)
    assert all(torch.equal(one, other) for one, other in zip(split(whole, spans, 0), pieces, strict=True))


def test_lengths_that_do_not_fit_are_refused_with_their_numbers():
    with pytest.raises(UserError, match=r"10 tokens is not divisible by 4 context ranks\. Pad it to 12"):
        shard(torch.zeros(10), 0, rank=0, ranks=4)
    with pytest.raises(UserError, match=r"3 tokens on each of 2 ranks .* multiple of 4: pad it to 8"):
        shard(torch.zeros(6), 0, rank=0, ranks=2, causal=True)
    with pytest.raises(UserError, match="the 2 segments have 7 tokens together, but the sequence has 8"):
        checked_segments([3, 4], 8)
    with pytest.raises(UserError, match="a packed sample has 0 tokens"):
        checked_segments([8, 0], 8)
