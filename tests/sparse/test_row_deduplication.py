"""Tests that rows are deduplicated exactly, whatever the hash does, and expanded to the same bits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.row_deduplication import _representatives, deduplicate
from nemo_vfm.sparse.row_fingerprint import fingerprints
from tests.support.jagged_rows import jagged, lists

ROW = st.lists(st.sampled_from([0, 1, -1, 2**63 - 1]), max_size=3)
PAIRS = st.lists(st.tuples(ROW, ROW), max_size=12)  # a row of two features for each sample


def features(pairs):
    return {"a": jagged([a for a, _ in pairs]), "b": jagged([b for _, b in pairs])}


@pytest.mark.parametrize("clustered", [False, True])
@settings(max_examples=80, deadline=None)
@given(pairs=PAIRS)
def test_expanded_is_the_input_and_each_distinct_row_or_run_of_them_is_stored_once_in_order(clustered, pairs):
    found = deduplicate(features(pairs), {"both": ["a", "b"]}, clustered=clustered)["both"]
    assert [*zip(*map(lists, found.expand().values()), strict=True)] == pairs
    runs = [pair for place, pair in enumerate(pairs) if not place or pairs[place - 1] != pair]
    assert [*zip(*map(lists, found.features.values()), strict=True)] == (runs if clustered else distinct(pairs))


def distinct(pairs):
    return [pair for place, pair in enumerate(pairs) if pairs.index(pair) == place]


def constant(columns, seed):
    return torch.zeros(len(columns[0]), dtype=torch.int64)


def by_length(columns, seed):
    return columns[0].lengths_B.clone()


def by_first_column(columns, seed):
    return fingerprints(columns[:1], seed)


def without_order(columns, seed):
    return fingerprints([jagged([sorted(row) for row in lists(column)]) for column in columns], seed)


def without_borders(columns, seed):
    joined = [[value for row in rows for value in row] for rows in zip(*map(lists, columns), strict=True)]
    return fingerprints([jagged(joined)], seed)


def one_bit(columns, seed):
    return fingerprints(columns, seed) & 1


def constant_at_first(columns, seed):
    return fingerprints(columns, seed) if seed else constant(columns, seed)


COLLIDING = [constant, by_length, by_first_column, without_order, without_borders, one_bit, constant_at_first]


@pytest.mark.parametrize("hashed", COLLIDING)
@settings(max_examples=25, deadline=None)
@given(pairs=PAIRS)
def test_no_collision_joins_different_rows_or_parts_equal_ones(hashed, pairs):
    assert _representatives([*features(pairs).values()], hashed).tolist() == [pairs.index(pair) for pair in pairs]


def test_after_a_collision_rows_are_hashed_with_another_seed_and_settled_in_one_round():
    seeds = []

    def counted(columns, seed):
        seeds.append((seed, len(columns[0])))
        return constant_at_first(columns, seed)

    rows = jagged([[n % 100] for n in range(300)])
    assert _representatives([rows], counted).tolist() == [n % 100 for n in range(300)]
    assert seeds == [(0, 300), (1, 297)]


EDGES = {"one sample": [([1], [])], "all equal": [([1, 2], [3])] * 5, "no samples": [],
         "all distinct": [([n], [n, n]) for n in range(6)], "all empty": [([], [])] * 4}  # fmt: skip


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("name", EDGES)
def test_edges(name, clustered):
    pairs = EDGES[name]
    found = deduplicate(features(pairs), {"both": ["a", "b"]}, clustered=clustered)["both"]
    assert [*zip(*map(lists, found.expand().values()), strict=True)] == pairs
    assert len(found) == len(pairs) and found.num_unique == len(distinct(pairs))
    found.require_valid()


def test_fingerprints_depend_on_order_place_length_column_and_seed_and_collide_nowhere_in_many_rows():
    rows = [[a, b] for a in range(120) for b in range(120)] + [[a] for a in range(120)] + [[0] * n for n in range(50)]
    distinct_rows = {tuple(row) for row in rows}
    found = fingerprints([jagged([[*row] for row in distinct_rows])], 0)
    assert len(found.unique()) == len(distinct_rows)
    salt = 0x9E3779B97F4A7C15 - 2**64  # mix(-salt + salt) = 0: there the lengths alone tell rows apart
    assert len(fingerprints([jagged([[], [-salt], [-salt, -salt]])], 0).unique()) == 3
    one, other = jagged([[1], []]), jagged([[], [1]])
    assert len({*fingerprints([one, other], 0).tolist()}) == 2
    assert not set(fingerprints([one], 0).tolist()) & set(fingerprints([one], 1).tolist())


@pytest.mark.slow
def test_fingerprints_use_every_bit():
    """Of 20,000 values of a row each bit is set in half, within five standard deviations."""
    found = fingerprints([jagged([[n] for n in range(20_000)])], 0)
    shares = torch.stack([(found >> bit & 1).double().mean() for bit in range(64)])
    assert (shares - 0.5).abs().max() < 5 * 0.5 / 20_000**0.5


def test_weights_must_be_equal_too_bit_by_bit():
    nan, lengths = float("nan"), torch.ones(6, dtype=torch.int64)
    weights = torch.tensor([1.0, 1.0, 0.0, -0.0, nan, nan])
    found = deduplicate({"a": Jagged(torch.zeros(6, dtype=torch.int64), lengths, weights)}, {"a": ["a"]})["a"]
    assert found.inverse_B.tolist() == [0, 0, 1, 2, 3, 3]
    assert torch.equal(found.expand()["a"].weights_N.view(torch.int32), weights.view(torch.int32))


def test_each_group_has_its_own_inverse_and_other_features_are_left_out():
    rows = {"a": jagged([[1], [1], [2]]), "b": jagged([[5], [6], [6]]), "c": jagged([[1], [1], [1]])}
    found = deduplicate(rows, {"x": ["a"], "y": ["b"]})
    assert {name: group.inverse_B.tolist() for name, group in found.items()} == {"x": [0, 0, 1], "y": [0, 1, 1]}
    assert found["x"].factor == 1.5


@settings(max_examples=40, deadline=None)
@given(PAIRS, st.data())
def test_a_cut_group_is_exact_and_holds_only_the_rows_that_it_uses(pairs, data):
    begin, end = sorted((data.draw(st.integers(0, len(pairs))), data.draw(st.integers(0, len(pairs)))))
    found = deduplicate(features(pairs), {"both": ["a", "b"]})["both"].rows(begin, end)
    assert [*zip(*map(lists, found.expand().values()), strict=True)] == pairs[begin:end]
    assert found.num_unique == len(distinct(pairs[begin:end])) and len(found) == end - begin


WRONG_GROUPS = {
    "names the feature z; the features are a, b": {"x": ["a", "z"]}, "group x has no features": {"x": []},
    "feature a is in the groups x and y": {"x": ["a"], "y": ["b", "a"]},
}  # fmt: skip


@pytest.mark.parametrize("sentence", WRONG_GROUPS)
def test_wrong_groups_are_refused(sentence):
    with pytest.raises(ValueError, match=sentence):
        deduplicate(features([([1], [2])]), WRONG_GROUPS[sentence])


def test_features_of_different_batches_and_values_that_are_no_ids_are_refused():
    with pytest.raises(ValueError, match=r"different numbers of rows: \{'a': 2, 'b': 1\}"):
        deduplicate({"a": jagged([[1], [2]]), "b": jagged([[1]])}, {"x": ["a", "b"]})
    with pytest.raises(ValueError, match=r"the shape \(2, 3\)"):
        deduplicate({"a": Jagged(torch.zeros(2, 3), torch.tensor([1, 1]))}, {"x": ["a"]})


def test_lengths_that_do_not_add_up_are_named_before_anything_is_compared():
    with pytest.raises(DataError, match=r"^b: the lengths of 2 rows add up to 3, but there are 2 values"):
        deduplicate({"a": jagged([[1], []]), "b": Jagged(torch.arange(2), torch.tensor([1, 2]))}, {"x": ["a", "b"]})


BAD = {
    "a, b: the inverse of sample 1 is 2, but the unique rows are 0 to 1": ([[1], [2]], [[3], []], [0, 2]),
    "a, b: the inverse of sample 0 is -1": ([[1], [2]], [[3], []], [-1, 0]),
    "b has 1 unique rows, but a of its group has 2": ([[1], [2]], [[3]], [0, 0]),
    "b: row 1 has the id 9": ([[1], [2]], [[3], [9]], [0, 1]),
}


@pytest.mark.parametrize("sentence", BAD)
def test_a_bad_group_is_named(sentence):
    a, b, inverse = BAD[sentence]
    with pytest.raises(DataError, match=sentence):
        DedupedGroup({"a": jagged(a), "b": jagged(b)}, torch.tensor(inverse)).require_valid({"b": 9})
