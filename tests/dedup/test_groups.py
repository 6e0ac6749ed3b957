"""Tests that of items that are alike the better one stays, and that the other refers to it."""

from hypothesis import given
from hypothesis import strategies as st

from nemo_vfm.dedup.sequence import kept_by_likeness

GROUPS = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.lists(st.tuples(st.integers(0, 3)), min_size=n, max_size=n),
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=15),
    )
)


@given(GROUPS)
def test_of_two_that_are_alike_never_both_stay(case):
    preferences, pairs = case
    gone = kept_by_likeness(preferences, pairs)
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
