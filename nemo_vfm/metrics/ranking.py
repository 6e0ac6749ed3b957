"""Computes AUC, calibration and log loss from counts that add up across parts of a log, and ranking metrics per group.

`GroupedScores` ranks the samples of each user or session among each other, and averages over these groups. Where scores
are equal, every order of their samples counts alike.
Shape letters: N samples, K distinct scores, or blocks of equal scores in a group, G groups, T samples of the largest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

#: Rounded logits are clamped to +-this, which bounds the number of distinct scores.
MAX_LOGIT = 32.0
_POSITIVE, _NEGATIVE, _PREDICTED, _LOSS = range(4)
#: Fields of `GroupedScores`.
GROUPED_COLUMNS = ("group_N", "score_N", "label_N", "weight_N")


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Samples of similar scores."""

    predicted: float  #: mean of their predicted probabilities
    observed: float  #: mean of their labels
    weight: float  #: sum of their weights


@dataclass(frozen=True, eq=False)
class ScoreCounts:
    """Sums over the samples of each distinct score. A metric that is not defined is NaN."""

    score_K: Tensor  #: the distinct scores, ascending, float64; rounded ones are in units of the step
    #: weighted sums over the samples of each score, float64: labels, 1 - labels, predicted probabilities, log losses in
    #: nats
    sums_K4: Tensor

    @staticmethod
    def of(
        logit_N: Tensor, label_N: Tensor, weight_N: Tensor | None = None, *, step: float | None = None
    ) -> "ScoreCounts":
        """Count samples, on the CPU.

        Args:
            logit_N: score of each; its sigmoid is the predicted probability.
            label_N: 0 to 1; y counts as y of a positive and 1 - y of a negative. Samples of NaN are left out.
            weight_N: weight of each sample; None: 1.
            step: logits are rounded to multiples of this to rank them, which bounds K to 64 / step + 1; None ranks them
                as they are. Losses and probabilities are those of the exact logits in either case.
        """
        weight_N = torch.ones_like(label_N) if weight_N is None else weight_N
        counted_N = (weight_N > 0) & ~label_N.isnan()
        logit_N, label_N, weight_N = (one[counted_N].cpu().double() for one in (logit_N, label_N, weight_N))
        loss_N = binary_cross_entropy_with_logits(logit_N, label_N, reduction="none")
        sums_N4 = torch.stack([label_N, 1 - label_N, logit_N.sigmoid(), loss_N], 1) * weight_N[:, None]
        ranked_N = logit_N if step is None else (logit_N.clamp(-MAX_LOGIT, MAX_LOGIT) / step).round()
        return _sum_by_score(ranked_N, sums_N4)

    @staticmethod
    def merge(parts: "Sequence[ScoreCounts]") -> "ScoreCounts":
        """As if the samples of all parts had been counted at once; all must have the same step.

        Labels and weights that are whole numbers add up exactly, in any order; other sums differ by rounding in fp64.
        """
        return _sum_by_score(torch.cat([part.score_K for part in parts]), torch.cat([part.sums_K4 for part in parts]))

    @property
    def weight(self) -> float:
        """Sum of the weights of all samples."""
        return float(self.sums_K4[:, [_POSITIVE, _NEGATIVE]].sum())

    def auc(self) -> float:
        """Area under the ROC curve: the chance that a positive's score is above a negative's, ties counted half."""
        positive_K, negative_K = self.sums_K4[:, _POSITIVE], self.sums_K4[:, _NEGATIVE]
        if self.score_K.isnan().any():
            return math.nan
        below_K = negative_K.cumsum(0) - negative_K
        return _ratio((positive_K * (below_K + negative_K / 2)).sum(), positive_K.sum() * negative_K.sum())

    def auc_error(self) -> float:
        """The most that rounding can have changed the AUC: half of the share of pairs with equal scores.

        Rounding keeps the order of scores that stay distinct, so only ties can be wrong. Scores that were equal before
        rounding count, too; without rounding the AUC is exact, and this is no error.
        """
        positive_K, negative_K = self.sums_K4[:, _POSITIVE], self.sums_K4[:, _NEGATIVE]
        return _ratio((positive_K * negative_K).sum() / 2, positive_K.sum() * negative_K.sum())

    def log_loss(self) -> float:
        """Mean cross-entropy, in nats."""
        return _ratio(self.sums_K4[:, _LOSS].sum(), self.sums_K4[:, [_POSITIVE, _NEGATIVE]].sum())

    def normalised_entropy(self) -> float:
        """The log loss divided by that of always predicting the mean label p; below 1 is better than that.

        L / -(p log p + (1 - p) log(1 - p)), equation 1 of He et al. 2014, "Practical lessons from predicting clicks on
        ads at Facebook".
        """
        p = _ratio(self.sums_K4[:, _POSITIVE].sum(), self.sums_K4[:, [_POSITIVE, _NEGATIVE]].sum())
        if not 0 < p < 1:
            return math.nan
        return self.log_loss() / -(p * math.log(p) + (1 - p) * math.log(1 - p))

    def calibration(self) -> float:
        """Sum of predicted probabilities over sum of labels; 1 where as many clicks come as were predicted."""
        return _ratio(self.sums_K4[:, _PREDICTED].sum(), self.sums_K4[:, _POSITIVE].sum())

    def reliability(self, bins: int = 10) -> list[ReliabilityBin]:
        """Bins of equal weight by ascending score. Equal scores share a bin: the one their middle falls into."""
        weight_K = self.sums_K4[:, _POSITIVE] + self.sums_K4[:, _NEGATIVE]
        middle_K = weight_K.cumsum(0) - weight_K / 2
        bin_K = (middle_K / weight_K.sum() * bins).long().clamp(0, bins - 1)
        sums = torch.zeros(bins, 4, dtype=torch.float64).index_add_(0, bin_K, self.sums_K4)
        weight = sums[:, _POSITIVE] + sums[:, _NEGATIVE]
        means = sums / weight[:, None]
        columns = (means[:, _PREDICTED].tolist(), means[:, _POSITIVE].tolist(), weight.tolist())
        return [ReliabilityBin(*row) for row in zip(*columns, strict=True) if row[2] > 0]


def auc(score_N: Tensor, label_N: Tensor, weight_N: Tensor | None = None) -> float:
    """The exact area under the ROC curve, see `ScoreCounts.auc`; scores may be of any range."""
    return ScoreCounts.of(score_N, label_N, weight_N).auc()


def expected_calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Mean distance of predicted and observed, by the bins' weights: equation 3 of Guo et al. 2017 (1706.04599).

    There the bins are equally wide; those of `ScoreCounts.reliability` hold equally many samples, since most predicted
    probabilities of clicks are small.
    """
    weight = sum(one.weight for one in bins)
    return sum(one.weight * abs(one.predicted - one.observed) for one in bins) / weight if weight else math.nan


def _sum_by_score(score_N: Tensor, sums_N4: Tensor) -> ScoreCounts:
    score_K, place_N = torch.unique(score_N, return_inverse=True)
    return ScoreCounts(score_K, sums_N4.new_zeros(len(score_K), 4).index_add_(0, place_N, sums_N4))


def _ratio(numerator: Tensor, denominator: Tensor) -> float:
    """NaN if the denominator is not above 0."""
    return float(numerator / denominator) if denominator > 0 else math.nan


@dataclass(frozen=True, eq=False)
class GroupedScores:
    """Samples, each with its group, to be merged over all parts of a log. 20 bytes a sample, with fp32 scores."""

    group_N: Tensor  #: int64
    score_N: Tensor  #: higher is more likely
    label_N: Tensor  #: 0 to 1
    weight_N: Tensor  #: above 0

    @staticmethod
    def of(group_N: Tensor, score_N: Tensor, label_N: Tensor, weight_N: Tensor) -> "GroupedScores":
        """Samples on the CPU; those of weight 0 and with a label of NaN are left out."""
        counted_N = (weight_N > 0) & ~label_N.isnan()
        return GroupedScores(*(one[counted_N].cpu() for one in (group_N, score_N, label_N, weight_N)))

    @staticmethod
    def merge(parts: "Sequence[GroupedScores]") -> "GroupedScores":
        """The samples of all parts."""
        return GroupedScores(*(torch.cat([getattr(part, name) for part in parts]) for name in GROUPED_COLUMNS))

    def columns(self) -> dict[str, Tensor]:
        """The fields by name, as ranks exchange them."""
        return {name: getattr(self, name) for name in GROUPED_COLUMNS}

    def by_group(self, top_k: Sequence[int]) -> dict[str, Tensor]:
        """Measures of each group, float64 (G,), in the order of the groups' numbers; NaN where one is not defined.

        `weight`: sum of the weights. `auc`: needs both labels. `ndcg_K`: gains are the labels, and position p is
        discounted by 1 / log2(p + 1), up to K. `recall_K`: share of the labels among the first K. `mrr`: 1 / expected
        position of the first label of at least 0.5, with ties in random order. The last three need a positive label,
        and ignore weights.

        The result does not depend on the order of samples: each group is sorted and summed by itself.
        """
        columns = [column.numpy() for column in self.columns().values()]
        group, score, label, weight = columns
        order_N = np.lexsort((weight, label, -score.astype(np.float64), group))
        group_N, *sorted_N = (torch.from_numpy(column[order_N]) for column in columns)
        sizes_G = torch.unique_consecutive(group_N, return_counts=True)[1]
        start_G = sizes_G.cumsum(0) - sizes_G
        names = ("weight", "auc", "mrr", *(f"{what}_{k}" for k in top_k for what in ("ndcg", "recall")))
        found = {name: torch.full((len(sizes_G),), torch.nan, dtype=torch.float64) for name in names}
        # Groups of similar size are padded to one batch, so that padding at most doubles the memory.
        level_G = sizes_G.double().log2().ceil()
        for level in level_G.unique().tolist():
            members = (level_G == level).nonzero().squeeze(1)
            place_T = torch.arange(int(sizes_G[members].max()))
            inside_GT = place_T < sizes_G[members, None]
            source_GT = (start_G[members, None] + place_T).clamp(max=len(group_N) - 1)
            score_GT, label_GT, weight_GT = (one[source_GT].double() for one in sorted_N)
            for name, value_G in _group_metrics(score_GT, label_GT, weight_GT, inside_GT, top_k).items():
                found[name][members] = value_G
        return found

    def measures(self, top_k: Sequence[int]) -> dict[str, float]:
        """Means over the groups for which each is defined, and how many groups there are; NaN where a score is.

        `gauc` counts groups alike; `weighted_gauc` by the weight of their samples (Zhu et al. 2017, 1706.06978, section
        5.3).
        """
        found = self.by_group(top_k)
        weight_G, auc_G = found.pop("weight"), found.pop("auc")
        alike_G, broken = torch.ones_like(weight_G), bool(self.score_N.isnan().any())
        means = {name: (value_G, alike_G) for name, value_G in {"gauc": auc_G, **found}.items()}
        means["weighted_gauc"] = auc_G, weight_G
        measured = {name: math.nan if broken else _mean(*pair) for name, pair in means.items()}
        return {**measured, "groups": len(weight_G), "groups_with_auc": int((~auc_G.isnan()).sum())}


def _mean(value_G: Tensor, weight_G: Tensor) -> float:
    """The weighted mean over groups whose value is not NaN, summed exactly (`fsum`); NaN if there is none."""
    defined_G = ~value_G.isnan()
    weight = math.fsum(weight_G[defined_G].tolist())
    return math.fsum((value_G * weight_G)[defined_G].tolist()) / weight if weight else math.nan


def _group_metrics(
    score_GT: Tensor, label_GT: Tensor, weight_GT: Tensor, inside_GT: Tensor, top_k: Sequence[int]
) -> dict[str, Tensor]:
    """See `GroupedScores.by_group`; each group's samples are in descending order of scores, then padding."""
    label_GT, weight_GT = label_GT.where(inside_GT, 0), weight_GT.where(inside_GT, 0)
    starts_block_GT = (score_GT[:, 1:] != score_GT[:, :-1]) | (inside_GT[:, 1:] != inside_GT[:, :-1])
    block_GT = torch.nn.functional.pad(starts_block_GT.cumsum(1), (1, 0))

    def sum_blocks(each_GT: Tensor) -> Tensor:
        return torch.zeros_like(label_GT).scatter_add_(1, block_GT, each_GT.double())

    positive_GK, negative_GK = sum_blocks(weight_GT * label_GT), sum_blocks(weight_GT * (1 - label_GT))
    below_GK = negative_GK.sum(1, keepdim=True) - negative_GK.cumsum(1)
    won_G = (positive_GK * (below_GK + negative_GK / 2)).sum(1)
    pairs_G = positive_GK.sum(1) * negative_GK.sum(1)
    count_GK, hits_GK = sum_blocks(inside_GT), sum_blocks((label_GT >= 0.5) & inside_GT)
    first_G1 = (hits_GK > 0).int().argmax(1, keepdim=True)
    above_GK = count_GK.cumsum(1) - count_GK
    above, count, hits = (one.gather(1, first_G1).squeeze(1) for one in (above_GK, count_GK, hits_GK))
    # With ties in random order the first of h hits among n samples has the expected position (n + 1) / (h + 1). This is
    # 1 over the expected position, not the expectation of 1 / position.
    found = {
        "weight": weight_GT.sum(1), "auc": won_G / pairs_G.where(pairs_G > 0, torch.nan),
        "mrr": (1 / (above + (count + 1) / (hits + 1))).where(hits > 0, torch.nan),
    }  # fmt: skip
    mean_GT = (sum_blocks(label_GT) / count_GK.clamp(min=1)).gather(1, block_GT).where(inside_GT, 0)
    best_GT = label_GT.sort(1, descending=True).values
    discount_T = 1 / torch.arange(2, label_GT.shape[1] + 2).double().log2()
    for k in top_k:
        ideal_G = (best_GT * discount_T)[:, :k].sum(1)
        found[f"ndcg_{k}"] = (mean_GT * discount_T)[:, :k].sum(1) / ideal_G.where(ideal_G > 0, torch.nan)
        all_G = label_GT.sum(1)
        found[f"recall_{k}"] = mean_GT[:, :k].sum(1) / all_G.where(all_G > 0, torch.nan)
    return found
