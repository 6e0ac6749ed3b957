"""Tests that every dropped item refers to a kept one, and that the best of each group is kept."""

from hypothesis import given
from hypothesis import strategies as st

from nemo_vfm.dedup.cluster import duplicates, kept_by_likeness

GROUPS = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.lists(st.tuples(st.integers(0, 3)), min_size=n, max_size=n),
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=15),
    )
)


def test_a_chain_of_likenesses_keeps_its_best_and_all_others_refer_to_it():
    assert duplicates([(1.0,), (3.0,), (2.0,), (9.0,)], [(0, 1), (1, 2)]) == {0: 1, 2: 1}


def test_of_equals_the_first_stays():
    assert duplicates([(1.0,), (1.0,)], [(1, 0)]) == {1: 0}


@given(GROUPS)
def test_every_duplicate_refers_to_a_kept_item_at_least_as_good(case):
    preferences, pairs = case
    gone = duplicates(preferences, pairs)
    for item, keeper in gone.items():
        assert keeper not in gone
        assert preferences[keeper] >= preferences[item]


@given(GROUPS)
def test_of_two_that_are_alike_never_both_stay(case):
    preferences, pairs = case
    gone = duplicates(preferences, pairs)
    assert all(a == b or a in gone or b in gone for a, b in pairs)


@given(GROUPS)
def test_what_goes_for_its_likeness_refers_to_the_best_that_stays_of_those_it_is_like(groups):
    preferences, pairs = groups
    gone = kept_by_likeness(preferences, pairs)
    like = {item: {a + b - item for a, b in pairs if item in (a, b)} - {item} for item in range(len(preferences))}
    better = {item: (preferences[item], -item) for item in like}
    for item in like:
        staying = [other for other in like[item] if other not in gone and better[other] > better[item]]
        assert gone.get(item) == max(staying, key=better.__getitem__, default=None)
