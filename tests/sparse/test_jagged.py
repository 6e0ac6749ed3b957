"""Tests jagged tensors against lists of lists, their gradients, and what they say of bad input."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.jagged import Jagged, jagged_index_select
from tests.support.jagged_rows import jagged, lists

ROWS = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=8)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.data())
def test_selected_and_cut_rows_are_those_of_a_list(rows, data):
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if rows else []
    begin, end = sorted((data.draw(st.integers(0, len(rows))), data.draw(st.integers(0, len(rows)))))
    found = jagged(rows)
    assert lists(found.select(torch.tensor(chosen, dtype=torch.int64))) == [rows[row] for row in chosen]
    part = found.rows(begin, end)
    assert lists(part) == rows[begin:end]
    assert part.offsets.tolist() == [sum(map(len, rows[begin:n])) for n in range(begin, end + 1)]
    assert lists(Jagged.cat([found, found.rows(begin, end)])) == rows + rows[begin:end]
    assert len(found) == len(rows) and found.offsets.tolist() == [sum(map(len, rows[:n])) for n in range(len(rows) + 1)]


def test_weights_go_with_their_values():
    weighted = Jagged(torch.arange(4), torch.tensor([1, 0, 3]), torch.tensor([0.5, 1.0, 2.0, 4.0]))
    parts = [weighted.select(torch.tensor([2, 0])), weighted.rows(1, 3), weighted.to("cpu")]
    assert [part.weights_N.tolist() for part in parts] == [[1, 2, 4, 0.5], [1, 2, 4], [0.5, 1, 2, 4]]
    assert Jagged.cat(parts[:2]).weights_N.tolist() == [1, 2, 4, 0.5, 1, 2, 4]
    with pytest.raises(ValueError, match="1 of 2 jagged tensors have weights"):
        Jagged.cat([weighted, Jagged(torch.arange(1), torch.tensor([1]))])


def test_the_gradient_of_a_value_is_the_sum_over_its_copies_in_values_of_any_shape_and_in_weights():
    rows = torch.tensor([1, 2, 1, 1])
    values = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def selected(values, weights):
        found = Jagged(values, torch.tensor([2, 1, 0, 2]), weights).select(rows)
        return found.values_N, found.weights_N

    assert torch.autograd.gradcheck(selected, (values, weights))
    selected(values, weights)[1].sum().backward()
    assert weights.grad.tolist() == [0, 0, 3, 0, 0]


@pytest.mark.slow  # loading the compiler takes ten seconds
def test_it_compiles_to_one_graph_forward_and_backward_for_all_sizes():
    compiled = torch.compile(jagged_index_select, backend="aot_eager", fullgraph=True, dynamic=True)
    for lengths, rows in (([2, 0, 3], [2, 2, 1]), ([1, 4, 2, 3], [3, 0])):
        lengths, rows = torch.tensor(lengths), torch.tensor(rows)
        values = torch.randn(int(lengths.sum()), 2, requires_grad=True)
        expected = jagged_index_select(values, lengths, rows)
        found = compiled(values, lengths, rows, len(expected[0]))
        grads = [torch.autograd.grad((one[0] ** 2).sum(), values)[0] for one in (found, expected)]
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1]) and torch.equal(*grads)


BAD = {
    "row 1 has length -1": Jagged(torch.arange(2), torch.tensor([3, -1])),
    "lengths of 2 rows add up to 4, but there are 3 values": Jagged(torch.arange(3), torch.tensor([1, 3])),
    "add up to 3, but there are 2 weights": Jagged(torch.arange(3), torch.tensor([3]), torch.ones(2)),
    "row 2 has the id 7, but its table has the rows 0 to 6": Jagged(torch.tensor([6, 7, 0]), torch.tensor([1, 0, 2])),
    "row 0 has the id -3": Jagged(torch.tensor([0, -3]), torch.tensor([2])),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_rows_are_named_with_feature_row_and_value(sentence):
    with pytest.raises(DataError, match=f"^item: .*{sentence}"):
        BAD[sentence].require_valid(7, "item")


def test_good_rows_are_valid():
    Jagged(torch.tensor([6, 0]), torch.tensor([0, 2, 0]), torch.ones(2)).require_valid(7)
    Jagged(torch.tensor([9]), torch.tensor([1])).require_valid()
