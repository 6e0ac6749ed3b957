"""Tests that features in a safetensors file come back, under the names that other readers rely on."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.feature_files import read_features, write_features
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.row_deduplication import deduplicate
from tests.support.jagged_rows import jagged, lists

USER = {"history": jagged([[1, 2], [1, 2], []]), "ads/seen": jagged([[7], [7], [8]])}
ITEM = {"item": Jagged(torch.arange(4), torch.tensor([1, 2, 1]), torch.tensor([0.5, 1.0, 2.0, 4.0]))}


@pytest.fixture
def file(tmp_path):
    write_features(tmp_path / "0.safetensors", ITEM, deduplicate(USER, {"user": [*USER]}))
    return tmp_path / "0.safetensors"


def test_the_names_and_numbers_are_those_of_the_format(file):
    assert {name: tensor.tolist() for name, tensor in load_file(file).items()} == {
        "user/history/values": [1, 2], "user/history/lengths": [2, 0], "user/ads/seen/values": [7, 8],
        "user/ads/seen/lengths": [1, 1], "user/inverse": [0, 0, 1], "plain/item/values": [0, 1, 2, 3],
        "plain/item/lengths": [1, 2, 1], "plain/item/weights": [0.5, 1, 2, 4],
    }  # fmt: skip


def test_they_come_back(file):
    features, groups = read_features(file)
    assert [*features] == ["item"] and [*groups] == ["user"]
    assert lists(features["item"]) == lists(ITEM["item"]) and features["item"].weights_N.tolist() == [0.5, 1, 2, 4]
    assert {name: lists(rows) for name, rows in groups["user"].expand().items()} == {
        name: lists(rows) for name, rows in USER.items()
    }


def test_views_of_one_tensor_are_written_each_for_itself(tmp_path):
    whole = jagged([[1], [2, 3], [4]])
    write_features(tmp_path / "views", {"a": whole.rows(0, 2), "b": whole.rows(1, 3)}, {})
    features, groups = read_features(tmp_path / "views")
    assert not groups and [lists(rows) for rows in features.values()] == [[[1], [2, 3]], [[2, 3], [4]]]


@pytest.mark.parametrize("name", ["plain", "a/b", ""])
def test_a_group_that_could_not_be_told_from_another_folder_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="a group cannot be called"):
        write_features(tmp_path / "x", {}, {name: DedupedGroup({"a": jagged([[1]])}, torch.tensor([0]))})
    assert not [*tmp_path.iterdir()]


DAMAGED = {
    "user/inverse is missing": {"user/inverse": None},
    "plain/item/lengths is missing": {"plain/item/lengths": None},
    "the inverse of sample 2 is 2": {"user/inverse": torch.tensor([0, 1, 2])},
    "item: row 1 has length -2": {"plain/item/lengths": torch.tensor([1, -2, 5])},
    "history: the lengths of 2 rows add up to 5": {"user/history/lengths": torch.tensor([2, 3])},
    "holds plain/item/colour, which is not a part": {"plain/item/colour": torch.tensor([1])},
    "a group of 1 samples has no features": {"new/inverse": torch.tensor([0])},
}


@pytest.mark.parametrize("sentence", DAMAGED)
def test_damage_is_named_with_the_file(file, sentence):
    tensors = {name: tensor for name, tensor in {**load_file(file), **DAMAGED[sentence]}.items() if tensor is not None}
    save_file(tensors, file)
    with pytest.raises(DataError, match=f"0.safetensors.*{sentence}"):
        read_features(file)


def test_a_truncated_file_is_named(file):
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"0.safetensors is not a complete safetensors file"):
        read_features(file)
