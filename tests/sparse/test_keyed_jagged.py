"""Tests features as a KeyedJaggedTensor and back, against a stand-in: TorchRec is not installed here.

The stand-in has the documented constructor and reads its arguments back by key. It shows the shape of the data only,
not that TorchRec takes it.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.keyed_jagged import from_keyed_jagged, to_keyed_jagged
from nemo_vfm.sparse.row_deduplication import deduplicate
from tests.support.jagged_rows import jagged, lists


@dataclass
class KeyedStandIn:
    """The constructor of `torchrec.KeyedJaggedTensor`, and its readers that we use."""

    keys: list[str]
    values: Tensor
    weights: Tensor | None = None
    lengths: Tensor | None = None
    stride_per_key_per_rank: list[list[int]] | None = None
    inverse_indices: tuple[list[str], Tensor] | None = None

    def read(self) -> "Read":
        return Read(self)


class Read:
    def __init__(self, made: KeyedStandIn) -> None:
        self.made = made

    def keys(self) -> list[str]:
        return self.made.keys

    def values(self) -> Tensor:
        return self.made.values

    def lengths(self) -> Tensor:
        return self.made.lengths

    def weights_or_none(self) -> Tensor | None:
        return self.made.weights

    def stride_per_key(self) -> list[int]:
        if self.made.stride_per_key_per_rank is not None:
            return [sum(ranks) for ranks in self.made.stride_per_key_per_rank]
        return [len(self.made.lengths) // len(self.made.keys)] * len(self.made.keys)

    def inverse_indices_or_none(self) -> tuple[list[str], Tensor] | None:
        return self.made.inverse_indices


PLAIN = {"item": jagged([[5], [6], [], [5, 7]])}
USER = {"history": jagged([[1, 2], [1, 2], [3], [3]]), "country": jagged([[9], [9], [8], [8]])}
OTHER = {"city": jagged([[4], [4], [4], [2]])}


def groups() -> dict[str, DedupedGroup]:
    return deduplicate({**USER, **OTHER}, {"history": ["history", "country"], "city": ["city"]})


def test_deduplicated_features_fill_strides_and_inverse_indices():
    made = to_keyed_jagged(KeyedStandIn, PLAIN, groups())
    assert made.keys == ["item", "history", "country", "city"]
    assert made.values.tolist() == [5, 6, 5, 7, 1, 2, 3, 9, 8, 4, 2]
    assert made.lengths.tolist() == [1, 1, 0, 2, 2, 1, 1, 1, 1, 1]
    assert made.stride_per_key_per_rank == [[4], [2], [2], [2]]
    assert made.inverse_indices[0] == made.keys
    assert made.inverse_indices[1].tolist() == [[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]


def test_plain_features_need_neither():
    made = to_keyed_jagged(KeyedStandIn, {**PLAIN, **USER})
    assert made.stride_per_key_per_rank is None and made.inverse_indices is None
    features, found = from_keyed_jagged(made.read())
    assert not found and {name: lists(rows) for name, rows in features.items()} == {
        name: lists(rows) for name, rows in {**PLAIN, **USER}.items()
    }


def test_all_come_back_as_they_were_also_from_int32_and_keys_in_another_order():
    made = to_keyed_jagged(KeyedStandIn, PLAIN, groups())
    made.values, made.lengths, names = made.values.int(), made.lengths.int(), made.inverse_indices[0]
    made.inverse_indices = (names[::-1], made.inverse_indices[1].flip(0).int())
    features, found = from_keyed_jagged(made.read())
    assert {name: lists(rows) for name, rows in features.items()} == {"item": lists(PLAIN["item"])}
    assert {name: [*group.features] for name, group in found.items()} == {
        "history": ["history", "country"],
        "city": ["city"],
    }
    expanded = {name: lists(rows) for group in found.values() for name, rows in group.expand().items()}
    assert expanded == {name: lists(rows) for name, rows in {**USER, **OTHER}.items()}
    assert found["city"].features["city"].values_N.dtype == torch.int64


def test_weights_go_along_and_mixed_ones_are_refused():
    weighted = Jagged(torch.arange(4), torch.tensor([1, 1, 0, 2]), torch.tensor([0.5, 1.0, 2.0, 4.0]))
    features, _ = from_keyed_jagged(to_keyed_jagged(KeyedStandIn, {"a": weighted, "b": weighted}).read())
    assert features["b"].weights_N.tolist() == [0.5, 1, 2, 4]
    with pytest.raises(ValueError, match="1 of 2 jagged tensors have weights"):
        to_keyed_jagged(KeyedStandIn, {"a": weighted, **PLAIN})


def test_no_features_and_features_of_different_samples_are_refused():
    with pytest.raises(ValueError, match="there are no features"):
        to_keyed_jagged(KeyedStandIn, {})
    with pytest.raises(ValueError, match=r"the same number of samples, got \[3, 4\]"):
        to_keyed_jagged(KeyedStandIn, {"a": jagged([[1], [2], [3]])}, groups())


def test_keys_with_equal_inverses_and_other_numbers_of_rows_are_groups_of_their_own():
    inverse = torch.tensor([[0, 0, 1], [0, 0, 1]])
    made = KeyedStandIn(["a", "b"], torch.arange(5), None, torch.ones(5).long(), [[3], [2]], (["a", "b"], inverse))
    _, found = from_keyed_jagged(made.read())
    expanded = [lists(rows) for group in found.values() for rows in group.expand().values()]
    assert [*found] == ["a", "b"] and expanded == [[[0], [0], [1]], [[3], [3], [4]]]


def damaged(**changes) -> KeyedStandIn:
    made = to_keyed_jagged(KeyedStandIn, PLAIN, groups())
    for name, value in changes.items():
        setattr(made, name, value)
    return made


BAD = {
    "inverse_indices lack city, country": {"inverse_indices": (["item", "history"], torch.arange(8).reshape(2, 4) % 4)},
    "no inverse_indices: {'item': 4": {"inverse_indices": None},
    "add up to 11, but there are 3 values": {"values": torch.arange(3)},
    "the inverse of sample 2 is 2, but the unique rows are 0 to 1": {
        "inverse_indices": (["item", "history", "country", "city"], torch.arange(4).expand(4, 4))
    },
}


@pytest.mark.parametrize("sentence", BAD)
def test_damaged_ones_are_named(sentence):
    with pytest.raises(DataError, match=sentence.replace("{", r"\{")):
        from_keyed_jagged(damaged(**BAD[sentence]).read())
