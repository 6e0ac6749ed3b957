# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Packs hold every sample once within their budget, are fuller than a greedy walk's, and are a function of g."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.core.errors import UserError
from nemo_vfm.data.module import ShardData
from nemo_vfm.data.pack import in_order, pack, packing, padded
from nemo_vfm.data.packed import PackedLatents
from tests.data.conftest import LatentShards

SHAPES = [[2, 1, 4, 4], [2, 3, 4, 4], [2, 5, 4, 6], [2, 2, 6, 4]]  # 4, 12, 30 and 12 tokens


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 100), max_size=200), st.integers(1, 50), st.sampled_from([1, 4, 64]))
def test_every_sample_lies_in_one_pack_within_the_budget(lengths: list[int], lookahead: int, multiple: int) -> None:
    packs = pack(lengths, 128, lookahead=lookahead, multiple=multiple)
    assert sorted(i for p in packs for i in p.samples) == list(range(len(lengths)))
    for p in packs:
        assert p.lengths == tuple(lengths[i] for i in p.samples) and p.cu_seqlens[-1] == sum(p.lengths)
        assert p.sizes == tuple(padded(n, multiple) for n in p.lengths) and p.cu_seqlens_padded[-1] <= 128
        assert len({i // lookahead for i in p.samples}) == 1
    assert [p.samples[0] for p in packs] == sorted(p.samples[0] for p in packs)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=120))
def test_a_window_alone_gives_the_same_packs(lengths: list[int]) -> None:
    packs = pack(lengths + lengths, 128, lookahead=len(lengths))
    assert [p.lengths for p in packs] == [p.lengths for p in pack(lengths, 128)] * 2


def test_packs_are_fuller_than_those_of_a_greedy_walk() -> None:
    lengths = torch.randint(100, 8000, (5000,), generator=torch.Generator().manual_seed(0)).tolist()
    greedy, ours = packing(in_order(lengths, 16384), 16384), packing(pack(lengths, 16384), 16384)
    assert ours.tokens == greedy.tokens == sum(lengths)
    assert ours.efficiency > 0.99 > 0.9 > greedy.efficiency


def test_what_fits_exactly_fills_the_pack() -> None:
    assert packing(pack([8, 8, 16, 4, 4, 4, 4], 16), 16).efficiency == 1.0
    assert packing([], 16).efficiency == 1.0 and pack([], 16) == []


@pytest.mark.parametrize(("lengths", "budget"), [([5, 17], 16), ([0], 16), ([1], 0)])
def test_what_cannot_be_packed_is_refused_with_its_numbers(lengths: list[int], budget: int) -> None:
    with pytest.raises(ValueError, match=r"17|1 or more"):
        pack(lengths, budget)


def packed(folder: Path, **changes: int) -> PackedLatents:
    data = ShardData(shards=folder, batch_size=1, val_fraction=0.1)
    return PackedLatents(data=data, budget_tokens=changes.pop("budget_tokens", 64), **changes)  # type: ignore[arg-type]


def contents(data: PackedLatents, count: int, first: int = 0) -> list[tuple[object, ...]]:
    data.start(seed=4, first_pack=first)
    return [
        (p.index, p.keys, p.cu_seqlens.tolist(), [part.latents_BCTHW.tolist() for part in p.parts])
        for p in islice(data.packs(), count)
    ]


def test_packs_hold_the_tokens_that_they_say(latent_shards: LatentShards) -> None:
    data = packed(latent_shards(SHAPES * 8), multiple=8)
    contents(data, 0)
    for p in islice(data.packs(), 20):
        shapes = [part.latents_BCTHW.shape[2:] for part in p.parts]
        assert list(p.lengths) == [t * (h // 2) * (w // 2) for t, h, w in shapes] == p.cu_seqlens.diff().tolist()
        assert p.cu_seqlens_padded.diff().tolist() == [padded(n, 8) for n in p.lengths]
        assert p.cu_seqlens.dtype == torch.int32 and p.cu_seqlens_padded[-1] <= 64


def test_every_sample_comes_once_an_epoch_and_any_resume_gives_the_tail(latent_shards: LatentShards) -> None:
    folder = latent_shards(SHAPES * 8)
    data = packed(folder)
    whole = contents(data, 40)
    each = data.packing().num_packs
    for epoch in range(40 // each):
        keys = [key for row in whole[epoch * each : (epoch + 1) * each] for key in row[1]]  # type: ignore[attr-defined]
        assert len(keys) == len(set(keys)) == data.data.num_train_samples()
    assert [row[1] for row in whole[:each]] != [row[1] for row in whole[each : 2 * each]]
    for first in (1, each, 2 * each + 1):
        assert contents(packed(folder), 40 - first, first) == whole[first:]


def test_a_bad_sample_keeps_its_place_with_weight_zero(latent_shards: LatentShards) -> None:
    good, bad = latent_shards(SHAPES * 4, name="good"), latent_shards(SHAPES * 4, bad={5: b"junk"}, name="bad")
    one, two = packed(good), packed(bad)
    assert [row[1] for row in contents(one, 12)] == [row[1] for row in contents(two, 12)]
    assert set(two.data.faults.by_sample) == {f"{5:032x}"}
    weights = [float(part.weight_B) for p in islice(two.packs(), 12) for part in p.parts if part.keys == (f"{5:032x}",)]
    assert weights and not any(weights)


def test_a_sample_longer_than_the_budget_is_told(latent_shards: LatentShards) -> None:
    with pytest.raises(UserError, match="30 tokens"):
        contents(packed(latent_shards(SHAPES), budget_tokens=20), 1)
