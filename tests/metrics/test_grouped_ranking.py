"""Tests measures of each group against scikit-learn and all orders of equal scores, however samples are spread."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from nemo_vfm.metrics.ranking import GroupedScores

KS = (1, 3, 10)


def drawn(seed: int, *, graded: bool) -> GroupedScores:
    """60 groups of 1 to 40 samples, in any order, many of equal scores, some of one label; some samples of weight 0."""
    counts, distinct = 60, 6
    rng = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 41, (counts,), generator=rng)
    group_N = (torch.randperm(counts, generator=rng) * 10**12 - 5).repeat_interleave(sizes)
    count = len(group_N)
    score_N = torch.randint(distinct, (count,), generator=rng) / 3 - 1
    label_N = (torch.rand(count, generator=rng) < (score_N - 1.5).sigmoid()).float()
    label_N = torch.rand(count, generator=rng) if graded else label_N
    weight_N = torch.randint(4, (count,), generator=rng) / 7
    order = torch.randperm(count, generator=rng)
    return GroupedScores.of(group_N[order], score_N[order], label_N[order], weight_N[order])


def groups(samples: GroupedScores) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Scores, labels and weights of each, by the numbers of the groups."""
    found = []
    for one in samples.group_N.unique():
        here = samples.group_N == one
        found.append((samples.score_N[here], samples.label_N[here], samples.weight_N[here]))
    return found


def expected(score: Tensor, label: Tensor, weight: Tensor) -> dict[str, float]:
    sklearn = pytest.importorskip("sklearn.metrics")
    found = {"weight": float(weight.double().sum())}
    if {0.0, 1.0} <= {*label.tolist()}:
        found["auc"] = sklearn.roc_auc_score(label.numpy(), score.numpy(), sample_weight=weight.double().numpy())
    for k in KS:
        if label.sum() > 0:
            pair = (label.double().numpy()[None], score.double().numpy()[None])
            found[f"ndcg_{k}"] = sklearn.ndcg_score(*pair, k=k) if len(label) > 1 else 1.0
            found[f"recall_{k}"] = sum(
                float(y) * min(1.0, max(0.0, (k - int((score > s).sum())) / int((score == s).sum())))
                for y, s in zip(label.double(), score, strict=True)
            ) / float(label.double().sum())
    return found


@pytest.mark.parametrize("graded", [False, True])
def test_every_group_has_the_measures_of_scikit_learn_in_each_part_of_which_samples_lie(graded):
    samples = drawn(3, graded=graded)
    found = samples.by_group(KS)
    for row, (score, label, weight) in enumerate(groups(samples)):
        for name, value in expected(score, label, weight).items():
            assert float(found[name][row]) == pytest.approx(value, abs=1e-12), (row, name)
        assert bool(found["auc"][row].isnan()) == (not graded and len(set(label.tolist())) == 1)
    spread = torch.randint(5, (len(samples.group_N),), generator=torch.Generator().manual_seed(1))
    columns = samples.columns()
    parts = [GroupedScores(**{name: one[spread == part] for name, one in columns.items()}) for part in range(5)]
    merged = GroupedScores.merge(parts[::-1])
    for name, value_G in merged.by_group(KS).items():
        assert torch.equal(value_G.nan_to_num(-1), found[name].nan_to_num(-1)), name
    assert merged.measures(KS) == samples.measures(KS)


def test_a_first_positive_has_its_mean_place_over_all_orders_of_equal_scores():
    for labels, scores in (([0, 1, 1, 0, 0], [2, 1, 1, 1, 0]), ([0, 0, 0], [1, 1, 1]), ([1, 0], [0, 1]), ([1], [5])):
        places = [
            next(place for place, row in enumerate(order, 1) if labels[row])
            for order in itertools.permutations(range(len(labels)))
            if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order)) and any(labels)
        ]
        count = len(labels)
        one = GroupedScores.of(
            torch.ones(count).long(), torch.tensor(scores).float(), torch.tensor(labels).float(), torch.ones(count)
        )
        found = float(one.by_group([1])["mrr"][0])
        assert found == pytest.approx(len(places) / sum(places), rel=1e-12) if places else math.isnan(found)


def test_means_count_groups_alike_or_by_their_weight_and_leave_out_those_without_a_value():
    group = torch.tensor([7, 7, 7, 9, 9, 9, 9, -3, -3])
    score = torch.tensor([3.0, 2, 1, 4, 3, 2, 1, 1, 2])
    label = torch.tensor([1.0, 0, 1, 0, 1, 0, 0, 0, 0])
    found = GroupedScores.of(group, score, label, torch.ones(9)).measures([2])
    assert found["groups"] == 3 and found["groups_with_auc"] == 2
    assert found["gauc"] == pytest.approx((1 / 2 + 2 / 3) / 2) and found["weighted_gauc"] == pytest.approx(
        (3 / 2 + 8 / 3) / 7
    )
    assert found["mrr"] == pytest.approx((1 + 1 / 2) / 2) and found["recall_2"] == pytest.approx((1 / 2 + 1) / 2)
    broken = GroupedScores.of(group, score.index_fill(0, torch.tensor(0), math.nan), label, torch.ones(9)).measures([2])
    assert math.isnan(broken["gauc"]) and math.isnan(broken["ndcg_2"]) and broken["groups"] == 3
    alone = GroupedScores.of(group[7:], score[7:], label[7:], torch.ones(2)).measures([2])
    assert math.isnan(alone["gauc"]) and math.isnan(alone["weighted_gauc"]) and math.isnan(alone["mrr"])
    extreme = GroupedScores.of(group[:3], torch.tensor([math.inf, -math.inf, -math.inf]), label[:3], torch.ones(3))
    assert extreme.measures([1])["gauc"] == 0.75
