"""Tests that the order of samples is a pure function of (seed, epoch), with every sample once an epoch."""

import pickle
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.data.batching.sample_order import BatchGroup, Order

GOLDEN = [[4, 7, 3], [1, 5, 0], [2, 6, 2]]


def groups(*sizes: tuple[int, int]) -> list[BatchGroup]:
    """(samples, batch size) of each group; sample numbers do not repeat."""
    first, made = 0, []
    for number, (count, batch_size) in enumerate(sizes):
        made.append(BatchGroup(f"g{number}", tuple(range(first, first + count)), batch_size))
        first += count
    return made


def stream(order: Order, name: str, num_batches: int) -> list[int]:
    """The samples of one group, in order."""
    batches = [order.batch(index) for index in range(num_batches)]
    return [sample for group, samples in batches if group.name == name for sample in samples]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 23), st.integers(1, 9)), min_size=1, max_size=4), st.integers(0, 99))
def test_every_sample_comes_once_in_each_epoch_of_its_group(sizes: list[tuple[int, int]], seed: int) -> None:
    order = Order(groups(*sizes), seed=seed)
    num_batches = order.batches_before(3)
    for group in order.groups:
        given_samples, count = stream(order, group.name, num_batches), len(group.samples)
        assert len(given_samples) >= 3 * count
        for epoch in range(3):
            assert sorted(given_samples[epoch * count : (epoch + 1) * count]) == list(group.samples)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 23), st.integers(1, 9)), min_size=1, max_size=4), st.integers(0, 500))
def test_a_batch_does_not_depend_on_what_was_asked_before(sizes: list[tuple[int, int]], index: int) -> None:
    walked = Order(groups(*sizes), seed=7)
    for number in range(index):
        walked.epoch(number)
    fresh = pickle.loads(pickle.dumps(Order(groups(*sizes), seed=7)))
    assert walked.batch(index) == fresh.batch(index)


def test_a_batch_never_mixes_groups_and_has_its_groups_size() -> None:
    order = Order(groups((10, 3), (7, 2), (1, 4)), seed=0)
    for index in range(60):
        group, samples = order.batch(index)
        assert set(samples) <= set(group.samples) and len(samples) == group.batch_size


def test_groups_are_met_in_proportion_to_their_samples() -> None:
    order = Order(groups((30, 2), (10, 2)), seed=0)
    names = Counter(order.batch(index)[0].name for index in range(order.batches_before(5)))
    assert names == {"g0": 75, "g1": 25}
    assert order.batches_per_epoch == 20


def test_seed_and_epoch_change_the_order_and_shuffle_false_keeps_it() -> None:
    def epoch(order: Order, number: int) -> list[int]:
        return [s for i in range(10 * number, 10 * number + 10) for s in order.batch(i)[1]]

    one, two = Order(groups((40, 4)), seed=1), Order(groups((40, 4)), seed=2)
    assert epoch(one, 0) != epoch(one, 1) != epoch(two, 1)
    assert epoch(one, 0) != epoch(two, 0)
    assert epoch(Order(groups((40, 4)), seed=1, shuffle=False), 3) == list(range(40))


def test_groups_take_turns_in_another_order_in_another_epoch_and_by_another_seed() -> None:
    def turns(seed: int, epoch: int, *, shuffle: bool = True) -> tuple[str, ...]:
        order = Order(groups((20, 2), (20, 2)), seed=seed, shuffle=shuffle)
        return tuple(order.batch(index)[0].name for index in range(20 * epoch, 20 * epoch + 20))

    found = [turns(0, 0), turns(0, 1), turns(0, 2), turns(1, 0)]
    assert len(set(found)) == 4 and all(Counter(one) == {"g0": 10, "g1": 10} for one in found)
    assert turns(0, 1, shuffle=False) == turns(0, 0, shuffle=False) == ("g0",) * 10 + ("g1",) * 10


def test_another_group_does_not_change_the_order_inside_a_group() -> None:
    alone, both = Order(groups((20, 4)), seed=3), Order(groups((20, 4), (9, 4)), seed=3)
    assert stream(alone, "g0", 10) == stream(both, "g0", both.batches_before(2))


def test_the_order_is_this_one_for_ever() -> None:
    """A change here changes every run: it would need a new schema version, not a new number in this test."""
    order = Order(groups((8, 3)), seed=0)
    assert [order.batch(index)[1] for index in range(3)] == GOLDEN


def test_empty_orders_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Order([], seed=0)
    with pytest.raises(ValueError, match="0 samples"):
        BatchGroup("g", (), 1)
