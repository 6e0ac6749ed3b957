"""Tests that each observed label counts by its weight, that unobserved ones count for nothing, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.sample_batches import TokenBatch
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.recsys.click import Click
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.feature_batch import FeatureBatch
from tests.support.jagged_rows import jagged

NAN = math.nan


def batch(weight: tuple[float, ...] | None = None, **labels: list[float]) -> FeatureBatch:
    count = len(next(iter(labels.values())))
    return FeatureBatch(
        3, torch.arange(count) + 100, torch.tensor(weight or (1.0,) * count), torch.zeros(count, 2),
        {name: torch.tensor(values) for name, values in labels.items()},
    )  # fmt: skip


def mean(task: Click, logit_BL: torch.Tensor, given: FeatureBatch) -> torch.Tensor:
    """Over a global batch, as an engine takes it."""
    prepared = task.prepare(given, seed=0, training=True)
    return (task.losses(logit_BL, prepared) * prepared.weight_B).sum() / prepared.weight_B.sum()


def by_hand(logit: float, label: float) -> float:
    p = 1 / (1 + math.exp(-logit))
    return -label * math.log(p) - (1 - label) * math.log(1 - p)


def test_a_samples_loss_is_the_weighted_sum_over_its_observed_labels() -> None:
    given = batch(click=[1, 0, NAN, NAN, 0.25], like=[NAN, 1, 0, NAN, 1], other=[5, 5, 5, 5, 5])
    logits = [[0.3, 9.0], [-2.0, 1.5], [4.0, 0.7], [1.0, 1.0], [0.0, -30.0]]
    prepared = (task := Click(labels={"click": 1.0, "like": 0.5})).prepare(given, seed=0, training=True)
    losses = task.losses(torch.tensor(logits), prepared)
    expected = [by_hand(0.3, 1), by_hand(-2, 0) + 0.5 * by_hand(1.5, 1), 0.5 * by_hand(0.7, 0), 0,
                by_hand(0, 0.25) + 0.5 * 30]  # fmt: skip
    assert losses.tolist() == pytest.approx(expected, rel=1e-6) and losses.dtype == torch.float32
    assert prepared.weight_B.tolist() == [1, 1, 1, 0, 1] and prepared.inputs == {"batch": given}


def test_an_unobserved_label_changes_no_gradient_and_a_sample_without_any_is_as_if_absent() -> None:
    task, logits = Click(labels={"click": 1.0, "like": 2.0}), torch.randn(4, 2, generator=torch.manual_seed(0))
    whole = batch(click=[1, NAN, NAN, 0], like=[0, 1, NAN, NAN])
    grown = logits.clone().requires_grad_()
    mean(task, grown, whole).backward()
    assert grown.grad is not None and grown.grad.isfinite().all()
    assert (grown.grad == 0).tolist() == [[False, False], [True, False], [True, True], [False, True]]
    kept = [0, 1, 3]
    without = replace(whole, ids_B=whole.ids_B[kept], weight_B=whole.weight_B[kept], dense_BF=whole.dense_BF[kept],
                      labels={name: label[kept] for name, label in whole.labels.items()})  # fmt: skip
    assert float(mean(task, logits, whole)) == pytest.approx(float(mean(task, logits[kept], without)), rel=1e-6)


def test_a_bad_sample_of_weight_zero_may_hold_any_label_and_counts_for_nothing() -> None:
    task, logits = Click(labels={"click": 1.0}), torch.tensor([[0.5], [5.0], [-1.0], [3.0]])
    given = batch((1, 0, 0, 2), click=[1, math.inf, -7, 0])
    expected = (by_hand(0.5, 1) + 2 * by_hand(3, 0)) / 3
    assert float(mean(task, logits, given)) == pytest.approx(expected, rel=1e-6)


def test_the_prediction_is_the_probability_of_each_label() -> None:
    task = Click(labels={"click": 1.0, "like": 1.0})
    prepared = task.prepare(batch(click=[1, 0], like=[1, 0]), seed=0, training=False)
    assert task.predict(torch.tensor([[0.0, 2.0], [-2.0, 0.0]]), prepared).flatten(1).tolist() == [
        pytest.approx([0.5, 1 / (1 + math.exp(-2))]), pytest.approx([1 / (1 + math.exp(2)), 0.5])
    ]  # fmt: skip


TOKENS = TokenBatch(0, ("a",), torch.ones(1), tokens_BS=torch.zeros(1, 2), labels_BS=torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (TOKENS, UserError, "this data yields TokenBatch"),
        (batch(like=[1.0]), UserError, "no label 'click'; it has 'like'"),
        (batch(click=[0.0, 1.0, 1.5]), DataError, "batch 3: the label 'click' of sample 102 is 1.5"),
        (batch(click=[0.0, -1.0]), DataError, "sample 101 is -1"),
        (batch(click=[math.inf]), DataError, "is inf"),
    ],
)
def test_a_batch_that_cannot_be_learned_from_is_refused_by_name(
    given: FeatureBatch, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Click(labels={"click": 1.0}).prepare(given, seed=0, training=True)


@pytest.mark.parametrize("labels", [{}, {"click": 0.0}, {"click": -1.0}, {"click": NAN}, {"click": math.inf}])
def test_labels_without_a_weight_above_zero_are_refused(labels: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="weight above zero"):
        Click(labels=labels)


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 3), (2, 2, 1)])
def test_a_model_with_other_logits_than_labels_is_refused_with_both_numbers(shape: tuple[int, ...]) -> None:
    task = Click(labels={"click": 1.0, "like": 1.0})
    prepared = task.prepare(batch(click=[1, 0], like=[1, 0]), seed=0, training=True)
    with pytest.raises(UserError, match=r"2 logits a sample were expected, for click, like; set model.num_labels=2"):
        task.losses(torch.zeros(shape), prepared)


def test_shapes_of_a_batch_are_those_of_what_a_model_reads_once_a_unique_row() -> None:
    group = DedupedGroup({"history": jagged([[1, 2, 3], []])}, torch.tensor([0, 0, 1]))
    given = replace(batch(click=[1, 0, 1]), features={"item": jagged([[1], [2], [3, 4]])}, groups={"user": group})
    prepared = Click(labels={"click": 1.0}).prepare(given, seed=0, training=True)
    assert prepared.shapes() == {
        "dense_BF": (3, 2), "item.values": (4,), "item.lengths": (3,), "history.values": (3,), "history.lengths": (2,),
    }  # fmt: skip
    assert ModelInputs({"x": torch.zeros(2, 1), "batch": given}, {}, torch.ones(2)).shapes()["x"] == (2, 1)
    with pytest.raises(UserError, match="input 'batch' is made of several tensors"):
        prepared.tensors()


def test_held_out_scores_are_kept_or_rounded_as_the_step_says() -> None:
    given, logits = batch(click=[0, 1, 0, 1]), torch.tensor([[0.1], [0.2], [1.1], [1.2]])
    found = {}
    for step in (None, 1.0):
        prepared = (task := Click(labels={"click": 1.0}, score_step=step)).prepare(given, seed=0, training=False)
        prepared.tags.update(task.scores(logits, prepared))
        found[step] = task.validation_metrics(task.merge([task.contribution(prepared)]))
    assert [one.metrics["auc"] for one in found.values()] == [0.75, 0.5]
    assert [one.details["labels"]["click"].get("auc_error") for one in found.values()] == [None, 0.25]
    with pytest.raises(ValueError, match="score_step must be above 0"):
        Click(labels={"click": 1.0}, score_step=0.0)


def test_a_list_of_labels_weighs_each_of_them_one() -> None:
    assert Click(labels=["click", "like"]).labels == Click(labels={"click": 1.0, "like": 1.0}).labels
    for labels in ([], {"click": 0.0}):
        with pytest.raises(ValueError, match="at least one label"):
            Click(labels=labels)


def test_a_label_that_the_data_lacks_is_named_with_the_way_to_take_it_out() -> None:
    with pytest.raises(UserError, match=r"no label 'click'; it has 'clicked'.*~task\.labels\.click"):
        Click(labels={"clicked": 1.0, "click": 1.0}).prepare(batch(clicked=[1, 0]), seed=0, training=True)
