"""Tests measures of ranking against sums over all pairs and samples, and that parts of a log add up to the whole."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from nemo_vfm.metrics.ranking import MAX_LOGIT, ReliabilityBin, ScoreCounts, auc, expected_calibration_error

Samples = tuple[Tensor, Tensor, Tensor]


def drawn(seed: int, count: int, distinct: int | None = None, *, soft: bool = False, weighted: bool = True) -> Samples:
    """Logits (few distinct ones make ties), labels that follow them, and weights, some of them 0."""
    rng = torch.Generator().manual_seed(seed)
    logit_N = torch.randn(count, generator=rng) * 2 - 1
    logit_N = logit_N if distinct is None else torch.randint(distinct, (count,), generator=rng) / 2 - 1
    label_N = (torch.rand(count, generator=rng) < (logit_N * 0.7).sigmoid()).float()
    label_N = torch.rand(count, generator=rng) if soft else label_N
    weight_N = torch.randint(4, (count,), generator=rng).float() / 2 if weighted else torch.ones(count)
    return logit_N, label_N, weight_N


def by_pairs(logit_N: Tensor, label_N: Tensor, weight_N: Tensor) -> float:
    """A positive part of each sample against a negative part of each."""
    won = total = 0.0
    rows = [*zip(logit_N.tolist(), label_N.tolist(), weight_N.tolist(), strict=True)]
    for (a, y, v), (b, z, w) in itertools.product(rows, rows):
        pairs = v * y * w * (1 - z)
        won, total = won + pairs * ((a > b) + (a == b) / 2), total + pairs
    return won / total


def by_samples(logit_N: Tensor, label_N: Tensor, weight_N: Tensor) -> tuple[float, float, float]:
    """(log loss, normalised entropy, calibration)."""
    loss = labels = predicted = weight = 0.0
    for z, y, w in zip(logit_N.tolist(), label_N.tolist(), weight_N.tolist(), strict=True):
        p = 1 / (1 + math.exp(-z))
        loss -= w * (y * math.log(p) + (1 - y) * math.log(1 - p))
        labels, predicted, weight = labels + w * y, predicted + w * p, weight + w
    mean = labels / weight
    entropy = -mean * math.log(mean) - (1 - mean) * math.log(1 - mean)
    return loss / weight, loss / weight / entropy, predicted / labels


CASES = [drawn(1, 90), drawn(2, 80, 5), drawn(3, 60, 2), drawn(4, 70, soft=True), drawn(5, 50, 7, weighted=False)]


@pytest.mark.parametrize("samples", CASES)
def test_every_measure_is_that_of_sums_over_all_pairs_and_samples(samples: Samples) -> None:
    counts = ScoreCounts.of(*samples)
    assert counts.auc() == pytest.approx(by_pairs(*samples), rel=1e-12) == auc(*samples)
    found = (counts.log_loss(), counts.normalised_entropy(), counts.calibration())
    assert found == pytest.approx(by_samples(*samples), rel=1e-6)
    assert counts.weight == float(samples[2].sum())


def test_scores_that_differ_in_float64_alone_are_ranked_apart_and_so_are_fine_steps():
    score_N, label_N = (
        torch.tensor([0.1, 0.1 + 1e-12, 30.0, 30.0 + 1e-9], dtype=torch.float64),
        torch.tensor([0.0, 1, 0, 1]),
    )
    assert auc(score_N, label_N) == 0.75 and auc(-score_N, label_N) == 0.25
    assert ScoreCounts.of(score_N[2:], label_N[2:], step=1e-9).auc() == 1


@pytest.mark.parametrize("step", [None, 0.25])
def test_however_a_log_is_cut_and_ordered_its_parts_add_up_to_the_whole(step: float | None) -> None:
    samples = drawn(6, 400, weighted=True)
    whole = ScoreCounts.of(*samples, step=step)
    for order in (torch.arange(400), torch.randperm(400, generator=torch.manual_seed(1))):
        cuts = [order[a:b] for a, b in itertools.pairwise([0, 7, 7, 150, 399, 400])]
        parts = [ScoreCounts.of(*(one[cut] for one in samples), step=step) for cut in cuts]
        merged = ScoreCounts.merge([ScoreCounts.merge(parts[:2]), *parts[2:]])
        assert torch.equal(merged.score_K, whole.score_K) and torch.equal(merged.sums_K4[:, :2], whole.sums_K4[:, :2])
        assert merged.auc() == whole.auc() and merged.log_loss() == pytest.approx(whole.log_loss(), rel=1e-14)


@pytest.mark.parametrize("step", [2.0, 0.5, 0.1, 0.001])
def test_rounding_changes_the_auc_by_at_max_what_it_says_and_nothing_else(step: float) -> None:
    samples = drawn(7, 3000)
    exact, rounded = ScoreCounts.of(*samples), ScoreCounts.of(*samples, step=step)
    assert exact.auc_error() == 0 < abs(exact.auc() - rounded.auc()) <= rounded.auc_error()
    assert rounded.auc_error() < 0.1 * step
    assert rounded.log_loss() == pytest.approx(exact.log_loss(), rel=1e-12)
    assert rounded.calibration() == pytest.approx(exact.calibration(), rel=1e-12)
    assert len(ScoreCounts.of(torch.linspace(-1e4, 1e4, 100_000), torch.zeros(100_000), step=1.0).score_K) == 65
    assert 2 * MAX_LOGIT + 1 == 65


def test_the_bound_is_reached_where_rounding_hides_the_whole_order() -> None:
    logit_N, label_N = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.0, 0.0, 1.0, 1.0])
    rounded = ScoreCounts.of(logit_N, label_N, step=1.0)
    assert (auc(logit_N, label_N), rounded.auc(), rounded.auc_error()) == (1.0, 0.5, 0.5)


def test_bins_of_reliability_hold_equally_many_samples_and_all_of_them() -> None:
    logit_N, label_N, _ = drawn(8, 1000, weighted=False)
    bins = ScoreCounts.of(logit_N, label_N).reliability()
    order = logit_N.argsort()
    for place, found in enumerate(bins):
        own = order[100 * place : 100 * place + 100]
        assert found.weight == 100 and found.observed == pytest.approx(float(label_N[own].mean()), rel=1e-6)
        assert found.predicted == pytest.approx(float(logit_N[own].sigmoid().mean()), rel=1e-6)
    gaps = [abs(one.predicted - one.observed) for one in bins]
    assert expected_calibration_error(bins) == pytest.approx(sum(gaps) / 10)
    assert sum(one.weight for one in ScoreCounts.of(*drawn(8, 1000, 3)).reliability()) == drawn(8, 1000, 3)[2].sum()


def test_samples_of_one_score_share_a_bin() -> None:
    counts = ScoreCounts.of(torch.tensor([0.0] * 70 + [1.0] * 30), torch.tensor([1.0] * 35 + [0.0] * 65))
    assert [(one.weight, one.observed) for one in counts.reliability()] == [(70, 0.5), (30, 0.0)]
    tiny = ScoreCounts.of(torch.tensor([0.0, 1.0]), torch.ones(2), torch.tensor([1.0, 1e-20]))
    assert sum(one.weight for one in tiny.reliability()) == 1
    uneven = [ReliabilityBin(0.5, 0.25, 3.0), ReliabilityBin(0.5, 0.5, 1.0)]
    assert expected_calibration_error(uneven) == 0.1875


def test_labels_that_were_not_observed_and_samples_of_weight_zero_are_left_out() -> None:
    logit_N, label_N, weight_N = drawn(9, 60, 6)
    left_out = ([9.0, -9.0, math.nan], [math.nan, 1.0, math.inf], [2.0, 0.0, 0.0])
    more = [torch.cat([one, torch.tensor(other)]) for one, other in zip(drawn(9, 60, 6), left_out, strict=True)]
    whole, without = ScoreCounts.of(*more), ScoreCounts.of(logit_N, label_N, weight_N)
    assert torch.equal(whole.score_K, without.score_K) and torch.equal(whole.sums_K4, without.sums_K4)


@pytest.mark.parametrize("labels", [[], [0.0, 0.0], [1.0, 1.0], [math.nan]])
def test_a_measure_that_is_not_defined_is_no_number(labels: list[float]) -> None:
    counts = ScoreCounts.of(torch.zeros(len(labels)), torch.tensor(labels))
    assert math.isnan(counts.auc()) and math.isnan(counts.normalised_entropy()) and math.isnan(counts.auc_error())
    assert math.isnan(counts.calibration()) == (1.0 not in labels)
    assert math.isnan(expected_calibration_error(counts.reliability())) == (counts.weight == 0)


@pytest.mark.parametrize("step", [None, 0.1])
def test_scores_that_are_no_numbers_are_not_ranked(step: float | None) -> None:
    counts = ScoreCounts.of(torch.tensor([0.0, math.nan, 1.0]), torch.tensor([0.0, 1.0, 1.0]), step=step)
    assert all(math.isnan(one) for one in (counts.auc(), counts.log_loss(), counts.calibration()))
