"""Measures how well scores rank and how true they are as probabilities, from counts that add up over parts of a log.

Shape letters: N samples, K distinct scores.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

#: Logits beyond this count as this where scores are rounded, so that there is a largest number of distinct ones.
MAX_LOGIT = 32.0

_POSITIVE, _NEGATIVE, _PREDICTED, _LOSS = range(4)


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Samples of similar scores."""

    predicted: float  #: mean of their predicted probabilities
    observed: float  #: mean of their labels
    weight: float  #: sum of their weights


@dataclass(frozen=True, eq=False)
class ScoreCounts:
    """Samples of a log by their scores, all that the measures need. Each is NaN where it is not defined."""

    score_K: Tensor  #: the distinct scores in rising order, float64; where they were rounded, in units of the step
    #: over the samples of each score, by their weights, float64: labels, 1 - labels, predicted probabilities, and log
    #: losses in natural units
    sums_K4: Tensor

    @staticmethod
    def of(
        logit_N: Tensor, label_N: Tensor, weight_N: Tensor | None = None, *, step: float | None = None
    ) -> "ScoreCounts":
        """Count samples, on the CPU.

        Args:
            logit_N: score of each; its sigmoid is the predicted probability.
            label_N: 0 to 1; a fraction counts as so much of a positive and the rest of a negative. NaN leaves one out.
            weight_N: what each counts; None counts all alike.
            step: round logits to multiples of this to rank them, which bounds K to 64 / step + 1; None ranks them as
                they are. Losses and probabilities are those of the exact logits in either case.
        """
        weight_N = torch.ones_like(label_N) if weight_N is None else weight_N
        counted_N = (weight_N > 0) & ~label_N.isnan()
        logit_N, label_N, weight_N = (one[counted_N].cpu().double() for one in (logit_N, label_N, weight_N))
        loss_N = binary_cross_entropy_with_logits(logit_N, label_N, reduction="none")
        sums_N4 = torch.stack([label_N, 1 - label_N, logit_N.sigmoid(), loss_N], 1) * weight_N[:, None]
        ranked_N = logit_N if step is None else (logit_N.clamp(-MAX_LOGIT, MAX_LOGIT) / step).round()
        return _added(ranked_N, sums_N4)

    @staticmethod
    def merged(parts: "Sequence[ScoreCounts]") -> "ScoreCounts":
        """As if the samples of all parts had been counted at once; all must have the same step.

        Labels and weights that are whole numbers add up exactly, in any order; other sums differ by rounding in fp64.
        """
        return _added(torch.cat([part.score_K for part in parts]), torch.cat([part.sums_K4 for part in parts]))

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
        """The most that rounding of scores can have changed the AUC: half of the pairs that are ties.

        Rounding keeps the order of all scores that stay apart, so only a tie can hide one. Scores that were equal
        before count, too, so of scores that were not rounded this means nothing.
        """
        positive_K, negative_K = self.sums_K4[:, _POSITIVE], self.sums_K4[:, _NEGATIVE]
        return _ratio((positive_K * negative_K).sum() / 2, positive_K.sum() * negative_K.sum())

    def log_loss(self) -> float:
        """Mean cross-entropy in natural units."""
        return _ratio(self.sums_K4[:, _LOSS].sum(), self.sums_K4[:, [_POSITIVE, _NEGATIVE]].sum())

    def normalised_entropy(self) -> float:
        """The log loss over that of predicting the mean label p everywhere; below 1 is better than that.

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
        """Samples in bins of equal weight by rising score. Those of one score share the bin that has their middle."""
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


def _added(score_N: Tensor, sums_N4: Tensor) -> ScoreCounts:
    score_K, place_N = torch.unique(score_N, return_inverse=True)
    return ScoreCounts(score_K, sums_N4.new_zeros(len(score_K), 4).index_add_(0, place_N, sums_N4))


def _ratio(above: Tensor, below: Tensor) -> float:
    """NaN where it is not defined."""
    return float(above / below) if below > 0 else math.nan
