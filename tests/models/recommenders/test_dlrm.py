"""Tests DLRM against its definition, and what it refuses."""

import pytest
import torch

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.recommenders.dlrm import DLRM, dot_interaction
from tests.support.session_batches import ROWS, session_batch
from tests.support.small_recommenders import small


def model(**given):
    return small(DLRM, **given)


@pytest.mark.parametrize("own", [False, True])
def test_the_interaction_is_the_dot_product_of_every_pair_once(own):
    x = torch.randn(3, 5, 4)
    pairs = [(x[:, i] * x[:, j]).sum(1) for i in range(5) for j in range(i + own)]
    torch.testing.assert_close(dot_interaction(x, own), torch.stack(pairs, 1))


@pytest.mark.parametrize(("own", "dense"), [(False, 3), (True, 3), (False, 0), (True, 0)])
def test_the_logits_are_those_of_the_definition_with_and_without_dense_numbers(own, dense):
    dlrm = model(self_interaction=own, **({} if dense else {"dense": 0, "bottom": []}))
    batch = session_batch(dense=dense).expand()
    weights = dlrm.state_dict()
    rows = {name: weights[f"tables.{name}.weight"] for name in ROWS}
    for sample in range(len(batch)):
        x = batch.dense_BF[sample]
        for layer in range(2 if dense else 0):
            x = (weights[f"bottom.layers.{layer}.weight"] @ x + weights[f"bottom.layers.{layer}.bias"]).relu()
        vectors = [rows[name][batch.features[name].rows(sample, sample + 1).values_N].sum(0) for name in ROWS]
        vectors = [x, *vectors] if dense else vectors
        pairs = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i + own)]
        y = torch.cat([x, torch.stack(pairs)])
        y = (weights["top.layers.0.weight"] @ y + weights["top.layers.0.bias"]).relu()
        y = weights["top.layers.1.weight"] @ y + weights["top.layers.1.bias"]
        torch.testing.assert_close(dlrm(batch)[sample], y, rtol=1e-4, atol=1e-5)


def test_a_seed_gives_the_same_weights_and_rows_also_to_a_model_born_on_meta():
    torch.manual_seed(4)
    here = model().state_dict()
    torch.manual_seed(4)
    with torch.device("meta"):
        born = model()
    assert all(tensor.is_meta for tensor in born.state_dict().values())
    born = born.to_empty(device="cpu")
    for name, parameter in born.named_parameters():
        parameter.data.copy_(born.initial_weight(name, parameter.shape, 4))
    assert all(torch.equal(here[name], tensor) for name, tensor in born.state_dict().items())


def test_a_missing_number_is_refused_with_its_place_or_becomes_a_zero_with_an_indicator():
    batch = session_batch()
    batch.dense_BF[4, 1] = float("nan")
    with pytest.raises(DataError, match="dense feature 1 of sample 4 is missing"):
        model()(batch)
    indicated, whole = model(missing="indicator"), session_batch()
    whole.dense_BF[4, 1] = 0
    found, zero = indicated(batch), indicated(whole)
    assert found.isfinite().all() and not torch.equal(found[4], zero[4])
    same = torch.arange(len(batch)) != 4
    assert torch.equal(found[same], zero[same])


@pytest.mark.parametrize(("given", "words"), [
    ({"bottom": [16, 9]}, "the last of bottom is width"),
    ({"dense": 0}, "no dense features for a bottom perceptron .16, 8.; set bottom to"),
    ({"rows": None}, "give rows .* one of them"),
    ({"deduplicated": {"user": "attend"}}, "DLRM has no attention; use 'pool'"),
    ({"deduplicated": {"user": "polo"}}, "deduplicated.user is 'polo'; it can be lookup, pool, attend"),
    ({"missing": "mean"}, "use refuse or indicator"),
])  # fmt: skip
def test_what_does_not_fit_together_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        model(**given)


def test_a_batch_of_other_names_is_refused_with_the_nearest_one():
    batch = session_batch()
    with pytest.raises(DataError, match=r"the group 'users': did you mean 'user'\?"):
        model(deduplicated={"users": "pool"})(batch)
    batch.features = {"items": batch.features["item"]}
    with pytest.raises(DataError, match=r"no feature 'item', which the model reads: did you mean 'items'\?"):
        model()(batch)


def test_the_ops_count_products_and_bytes_of_rows():
    inputs = {
        "dense_BF": (10, 3),
        "item.values": (10,),
        "item.lengths": (10,),
        "country.values": (6,),
        "country.lengths": (5,),
    }
    here, unique = model(dtype="bf16").ops(inputs), model(deduplicated={"user": "pool"}).ops(inputs)
    bytes_of = [{op.name: op.bytes for op in ops if op.kind == "lookup"} for ops in (here, unique)]
    assert bytes_of[0]["table item"] == 10 * 8 * 2 and bytes_of[0]["table country"] == 12 * 8 * 2
    assert bytes_of[1]["table item"] == 10 * 8 * 4 and bytes_of[1]["table country"] == 6 * 8 * 4
    flops = {op.name: op.flops for op in here if op.flops}
    assert flops["perceptrons"] == 20 * (3 * 16 + 16 * 8 + (8 + 10) * 16 + 16 * 2)
    assert flops["dot interaction"] == 20 * 25 * 8
