"""Tests that packs hold every sample once within budget, are fuller than greedy ones, and are a function of g."""

import math
import time
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.core.types.training_data import TrainingData
from nemo_vfm.data.batching.packing import Pack, measure_packing, pack, side_by_side
from nemo_vfm.data.loader.scheduled_data import ScheduledData
from nemo_vfm.data.sources.blend import Blend, BlendSource
from nemo_vfm.data.sources.packed import PackedLatents
from nemo_vfm.data.sources.shard_data import ShardData
from tests.data.conftest import LatentShards

SHAPES = [[2, 1, 4, 4], [2, 3, 4, 4], [2, 5, 4, 6], [2, 2, 6, 4]]  # 4, 12, 30 and 12 tokens


@settings(max_examples=100)
@given(st.lists(st.integers(1, 100), max_size=200), st.integers(1, 50))
def test_every_sample_lies_in_one_pack_within_the_budget(lengths: list[int], lookahead: int) -> None:
    packs = pack(lengths, 128, lookahead=lookahead)
    assert sorted(i for p in packs for i in p.samples) == list(range(len(lengths)))
    for p in packs:
        assert p.lengths == tuple(lengths[i] for i in p.samples) and sum(p.lengths) <= 128
        assert len({i // lookahead for i in p.samples}) == 1
    assert [p.samples[0] for p in packs] == sorted(p.samples[0] for p in packs)


def first_fit(lengths: list[int], budget: int) -> list[list[int]]:
    """First-fit-decreasing as it is told: the first bin of all in which it fits, by looking at each."""
    bins: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        fits = (one for one in bins if sum(lengths[i] for i in one) + lengths[place] <= budget)
        chosen = next(fits, None)
        if chosen is None:
            bins.append([place])
        else:
            chosen.append(place)
    return sorted(sorted(one) for one in bins)


@settings(max_examples=100)
@given(st.lists(st.integers(1, 128), max_size=100))
def test_each_sample_goes_where_it_fits_first_the_longest_before_all(lengths: list[int]) -> None:
    assert [list(p.samples) for p in pack(lengths, 128)] == first_fit(lengths, 128)


def test_many_lengths_that_fill_a_pack_each_take_no_look_at_every_pack() -> None:
    lengths = torch.randint(600, 1000, (20_000,), generator=torch.Generator().manual_seed(0)).tolist()
    before = time.process_time()
    assert len(pack(lengths, 1000, lookahead=20_000)) == 20_000
    assert time.process_time() - before < 5.0, "half a second is usual; a look at every pack takes over ten"


@settings(max_examples=50)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=120))
def test_a_window_alone_gives_the_same_packs(lengths: list[int]) -> None:
    packs = pack(lengths + lengths, 128, lookahead=len(lengths))
    assert [p.lengths for p in packs] == [p.lengths for p in pack(lengths, 128)] * 2


def in_order(lengths: list[int], budget: int) -> list[Pack]:
    """Samples as they come, a new pack where one does not fit."""
    packs, room = [[lengths[0]]], budget - lengths[0]
    for length in lengths[1:]:
        if length > room:
            packs.append([])
            room = budget
        packs[-1].append(length)
        room -= length
    return [Pack((), tuple(one)) for one in packs]


def test_packs_are_fuller_than_those_of_a_greedy_walk() -> None:
    lengths = torch.randint(100, 8000, (5000,), generator=torch.Generator().manual_seed(0)).tolist()
    greedy, ours = measure_packing(in_order(lengths, 16384), 16384), measure_packing(pack(lengths, 16384), 16384)
    assert ours.tokens == greedy.tokens == sum(lengths)
    assert ours.efficiency > 0.99 > 0.9 > greedy.efficiency


def test_what_fits_exactly_fills_the_pack() -> None:
    assert measure_packing(pack([8, 8, 16, 4, 4, 4, 4], 16), 16).efficiency == 1.0
    assert measure_packing([], 16).efficiency == 1.0 and pack([], 16) == []


@pytest.mark.parametrize(("lengths", "budget"), [([5, 17], 16), ([0], 16), ([1], 0)])
def test_what_cannot_be_packed_is_refused_with_its_numbers(lengths: list[int], budget: int) -> None:
    with pytest.raises(ValueError, match=r"17|must be at least 1"):
        pack(lengths, budget)


def packed(folder: Path, **changes: Any) -> PackedLatents:
    data = ShardData(shards=folder, batch_size=1, val_fraction=0.1, num_workers=changes.pop("num_workers", 0))
    return PackedLatents(data=data, **{"budget_tokens": 64, **changes})


def content(batch: Batch) -> tuple[object, ...]:
    rows = None if batch.latents_XC is None else batch.latents_XC.tolist()
    return batch.index, batch.keys, batch.captions, batch.weight_B.tolist(), batch.sizes_THW, rows


def contents(data: PackedLatents, count: int, first: int = 0, **ranks: int) -> list[tuple[object, ...]]:
    data.start(seed=4, first_batch=first, **ranks)
    return [content(batch) for batch in islice(data.train_dataloader(), count)]


def keys_of(data: PackedLatents, count: int) -> list[tuple[str, ...]]:
    return [row[1] for row in contents(data, count)]  # type: ignore[misc]


def test_packed_latents_are_training_data_that_a_blend_takes(latent_shards: LatentShards) -> None:
    data = packed(latent_shards(SHAPES * 4), packs=2)
    assert isinstance(data, ScheduledData) and isinstance(data, TrainingData) and data.batch_sizes() == {"packs": 2}
    blend = Blend(sources={"all": BlendSource(data)})
    blend.start(seed=0, first_batch=0)
    assert next(iter(blend.train_dataloader())).sizes_THW


def test_a_pack_holds_each_sample_with_its_own_latents_text_rate_and_size(latent_shards: LatentShards) -> None:
    data = packed(latent_shards(SHAPES * 8))
    data.start(seed=4, first_batch=0)
    for batch in islice(data.train_dataloader(), 20):
        assert batch.latents_XC is not None and batch.text_BLD is not None and batch.text_mask_BL is not None
        numbers = [int(key, 16) for key in batch.keys]
        assert batch.sizes_THW == tuple(tuple(SHAPES[n % 4][1:]) for n in numbers)
        assert sum(math.prod(size) // 4 for size in batch.sizes_THW) <= 64 < 4 * len(batch.latents_XC)
        ends = [0, *accumulate(math.prod(size) for size in batch.sizes_THW)]
        assert [set(batch.latents_XC[a:b].flatten().tolist()) for a, b in pairwise(ends)] == [{n} for n in numbers]
        assert batch.text_BLD[:, 0, 0].tolist() == numbers and batch.captions == tuple(f"caption {n}" for n in numbers)
        assert batch.fps_B.tolist() == [8.0 + number for number in numbers]
        assert batch.text_mask_BL.sum(1).tolist() == [2] * len(numbers)


def test_images_and_videos_share_packs(latent_shards: LatentShards) -> None:
    data = packed(latent_shards([[2, 1, 4, 4], [2, 3, 4, 4]] * 10))
    data.start(seed=4, first_batch=0)
    frames = [{size[0] for size in batch.sizes_THW} for batch in islice(data.train_dataloader(), 2)]
    assert {1, 3} in frames


@pytest.mark.parametrize("workers", [0, 3])
def test_every_sample_comes_once_an_epoch_and_any_resume_gives_the_tail(
    latent_shards: LatentShards, workers: int
) -> None:
    folder = latent_shards(SHAPES * 8)
    data = packed(folder, num_workers=workers)
    whole = contents(data, 40)
    each = len(data.by_number().schedule.packs)  # type: ignore[attr-defined]
    assert data.batches_per_epoch() == each
    for epoch in range(40 // each):
        keys = [key for row in whole[epoch * each : (epoch + 1) * each] for key in row[1]]  # type: ignore[attr-defined]
        assert len(keys) == len(set(keys)) == data.num_train_samples()
    assert [row[1] for row in whole[:each]] != [row[1] for row in whole[each : 2 * each]]
    for first in (1, each, 2 * each + 1):
        assert contents(packed(folder, num_workers=workers), 40 - first, first) == whole[first:]


def test_ranks_share_the_packs_of_a_batch_and_all_of_them_are_one_ranks(latent_shards: LatentShards) -> None:
    folder = latent_shards(SHAPES * 8)
    alone = contents(packed(folder, packs=4), 6)
    for num_ranks in (2, 4):
        parts = [contents(packed(folder, packs=4), 6, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
        for number, whole in enumerate(alone):
            for field in (1, 3, 4, 5):
                assert [x for part in parts for x in part[number][field]] == list(whole[field])  # type: ignore[call-overload]
    with pytest.raises(UserError, match="packs 4 of a global batch cannot be divided among 3"):
        packed(folder, packs=4).start(seed=0, first_batch=0, num_ranks=3)


def test_what_is_held_out_comes_in_packs_too_the_same_for_every_seed(latent_shards: LatentShards) -> None:
    data, other = packed(latent_shards(SHAPES * 30)), packed(latent_shards(SHAPES * 30, name="again"))
    data.start(seed=4, first_batch=0)
    other.start(seed=5, first_batch=0)
    held_out = [content(batch) for batch in data.val_dataloader()]
    assert [row[0] for row in held_out] == list(range(len(held_out))) and max(len(row[1]) for row in held_out) > 1  # type: ignore[arg-type]
    assert [content(batch) for batch in other.val_dataloader()] == held_out
    assert {key for row in held_out for key in row[1]}.isdisjoint(k for keys in keys_of(data, 40) for k in keys)  # type: ignore[attr-defined]


def test_one_by_one_gives_the_same_samples_as_batches_of_one_shape(latent_shards: LatentShards) -> None:
    folder = latent_shards(SHAPES * 8)
    together, apart = packed(folder, packs=2), packed(folder, packs=2, packed=False)
    together.start(seed=4, first_batch=0)
    pairs = []
    for rank in range(2):
        apart.start(seed=4, first_batch=0, rank=rank, num_ranks=2)
        pairs.append(next(iter(apart.train_dataloader())).cut(1))
    assert len(pairs[0]) == len(pairs[1]), "ranks must call the model equally often"
    whole = next(iter(together.train_dataloader()))
    found = [one for pieces in pairs for one in pieces if one.weight_B.item() > 0]
    assert [one.keys[0] for one in found] == list(whole.keys) and {one.index for one in found} == {whole.index}
    assert all(isinstance(one, VideoBatch) and one.latents_BCTHW is not None for one in found)
    again = side_by_side(whole.index, found)
    assert content(again) == content(whole)
    val = [key for batch in together.val_dataloader() for key in batch.keys]
    assert val == [key for batch in apart.val_dataloader() for key in batch.keys]


def test_a_pack_is_cut_into_as_many_pieces_on_every_rank(latent_shards: LatentShards) -> None:
    data = packed(latent_shards([[2, 4, 8, 8], [2, 4, 8, 8], [2, 1, 4, 4], [2, 1, 4, 4]] * 4))
    data.start(seed=4, first_batch=0)
    counts = set()
    for batch in islice(data.train_dataloader(), 12):
        pieces = batch.cut(2)
        counts.add(len(batch))
        assert len(pieces) == 2 and float(sum(p.weight_B.sum() for p in pieces)) == float(batch.weight_B.sum())
        assert all(len(p.latents_XC) == sum(math.prod(s) for s in p.sizes_THW) for p in pieces)  # type: ignore[arg-type]
    assert min(counts) == 1 < max(counts), "packs of one sample and of several"


def test_a_bad_sample_keeps_its_place_with_weight_zero(latent_shards: LatentShards) -> None:
    good, bad = latent_shards(SHAPES * 4, name="good"), latent_shards(SHAPES * 4, bad={5: b"junk"}, name="bad")
    one, two = packed(good), packed(bad)
    found = contents(two, 12)
    assert [row[1] for row in contents(one, 12)] == [row[1] for row in found]
    assert set(two.faults.by_sample) == {f"{5:032x}"}
    weights = {key: weight for row in found for key, weight in zip(row[1], row[3], strict=True)}  # type: ignore[call-overload]
    assert [key for key, weight in weights.items() if not weight] == [f"{5:032x}"]


def test_a_sample_longer_than_the_budget_is_told(latent_shards: LatentShards) -> None:
    with pytest.raises(UserError, match="30 tokens: more than the 20 of a pack; raise budget_tokens"):
        contents(packed(latent_shards(SHAPES), budget_tokens=20), 1)


def test_a_short_text_beside_a_long_one_is_padded_and_the_padding_hidden() -> None:
    one, parts = torch.ones(1), []
    for tokens in (2, 5):
        text, mask = torch.ones(1, tokens, 4), torch.ones(1, tokens, dtype=torch.bool)
        latents = torch.zeros(1, 2, 1, 2, 2)
        parts.append(VideoBatch(0, ("a",), one, ("",), one, text, mask, latents_BCTHW=latents))
    found = side_by_side(0, parts)
    assert found.text_mask_BL is not None and found.text_mask_BL.tolist() == [[True] * 2 + [False] * 3, [True] * 5]
    assert found.text_BLD is not None and found.text_BLD[:, :, 0].tolist() == [[1.0] * 2 + [0.0] * 3, [1.0] * 5]


def test_what_cannot_lie_side_by_side_is_told(latent_shards: LatentShards) -> None:
    data = packed(latent_shards([[2, 1, 4, 4], [3, 1, 4, 4]] * 4))
    with pytest.raises(UserError, match=r"\[2, 3\] channels cannot share a pack"):
        contents(data, 2)
    with pytest.raises(UserError, match="before start"):
        packed(latent_shards(SHAPES, name="other")).train_dataloader()
    together = ShardData(shards=latent_shards(SHAPES, name="fourth"), batch_size=1, fetch_together=True)
    with pytest.raises(ValueError, match="packs cannot be fetched together yet"):
        PackedLatents(data=together, budget_tokens=64)
    with pytest.raises(ValueError, match="at least 1"):
        packed(latent_shards(SHAPES, name="third"), packs=0)
