"""Tests features as TorchRec's own KeyedJaggedTensor and back, and what its collections make of them."""

import pytest
import torch

from nemo_vfm.models.convert.torchrec_tables import load_torchrec, weights_to_torchrec
from nemo_vfm.sparse.keyed_jagged import from_keyed_jagged, to_keyed_jagged
from nemo_vfm.sparse.row_deduplication import deduplicate
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowWiseAdaGrad
from nemo_vfm.sparse.tables.table_spec import TableSpec
from tests.support.jagged_rows import lists
from tests.support.random_features import random_jagged

torchrec = pytest.importorskip("torchrec", reason="TorchRec has an environment of its own: make torchrec")

ROWS, WIDTH, BATCH = 4, 8, 30
FEATURES = ("clicked", "bought", "place", "page")
SPECS = {"item": ("clicked", "bought"), "place": ("place",), "page": ("page",)}


def features(weighted=False):
    """One id or none a sample: many rows of a group come again."""
    return {name: random_jagged(ROWS, BATCH, seed, 1, weighted) for seed, name in enumerate(FEATURES)}


def grouped():
    """What is plain, groups of unique rows, and all of it expanded."""
    every = features()
    groups = deduplicate(every, {"user": ("clicked", "bought"), "where": ("place",)})
    assert 1 < groups["where"].num_unique < groups["user"].num_unique < BATCH
    return {"page": every["page"]}, groups, every


def tables():
    specs = {name: TableSpec(ROWS, WIDTH, names) for name, names in SPECS.items()}
    return FusedTables(specs, RowWiseAdaGrad(lr=0.1), seed=2)


def collection(kind="EmbeddingBag"):
    config = getattr(torchrec, f"{kind}Config")
    configs = [config(name=name, embedding_dim=WIDTH, num_embeddings=ROWS, feature_names=[*names])
               for name, names in SPECS.items()]  # fmt: skip
    return getattr(torchrec, f"{kind}Collection")(tables=configs)


@pytest.mark.parametrize("weighted", [False, True])
def test_plain_features_come_back(weighted):
    given = features(weighted)
    keyed = to_keyed_jagged(torchrec.KeyedJaggedTensor, given)
    found, groups = from_keyed_jagged(keyed)
    assert not groups and list(found) == list(given) and keyed.stride() == BATCH
    for name, feature in given.items():
        assert lists(found[name]) == lists(feature) == [one.tolist() for one in keyed[name].to_dense()]
        assert not weighted or torch.equal(found[name].weights_N, feature.weights_N)


def test_groups_come_back_with_their_unique_rows_and_inverse():
    plain, groups, every = grouped()
    keyed = to_keyed_jagged(torchrec.KeyedJaggedTensor, plain, groups)
    assert keyed.variable_stride_per_key() and keyed.stride() == BATCH
    found, found_groups = from_keyed_jagged(keyed)
    assert list(found) == ["page"] and lists(found["page"]) == lists(every["page"])
    for name, found_name in (("user", "clicked"), ("where", "place")):
        ours, theirs = groups[name], found_groups[found_name]
        assert torch.equal(ours.inverse_B, theirs.inverse_B) and list(ours.features) == list(theirs.features)
        assert all(lists(ours.features[key]) == lists(theirs.features[key]) for key in ours.features)


def test_a_bag_collection_gives_the_same_for_unique_rows_as_for_all_and_as_our_tables():
    (plain, groups, every), own, theirs = grouped(), tables(), collection()
    theirs.load_state_dict(weights_to_torchrec(own))
    expected = own.lookup(every)
    for given in (to_keyed_jagged(torchrec.KeyedJaggedTensor, every),
                  to_keyed_jagged(torchrec.KeyedJaggedTensor, plain, groups)):  # fmt: skip
        found = theirs(given).to_dict()
        for name in every:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-6)


def test_an_embedding_collection_still_ignores_the_inverse():
    """When this fails, TorchRec has been mended: delete the warning of `to_keyed_jagged`."""
    plain, groups, _ = grouped()
    found = collection("Embedding")(to_keyed_jagged(torchrec.KeyedJaggedTensor, plain, groups))
    assert len(found["place"].lengths()) == groups["where"].num_unique


def test_weights_of_a_collection_go_in_and_out_unchanged():
    own, theirs = tables(), collection()
    given = {f"model.sparse.{name}": tensor for name, tensor in theirs.state_dict().items()}
    load_torchrec(own, given)
    found = weights_to_torchrec(own)
    assert list(found) == list(theirs.state_dict())
    assert all(torch.equal(tensor, found[name]) for name, tensor in theirs.state_dict().items())
