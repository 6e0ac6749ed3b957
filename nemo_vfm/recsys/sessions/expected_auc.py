"""Computes the AUC that a score is expected to have where each sample's probability of a positive label is known.

Shape letters: B samples, T different scores.
"""

import torch
from torch import Tensor


class ScoreRanks:
    """Samples in the order of a score, ready for the expected AUC under any probabilities.

    Args:
        score_B: any numbers.
    """

    def __init__(self, score_B: Tensor) -> None:
        different_T, self._of_B = torch.unique(score_B, return_inverse=True)
        self._num_different = len(different_T)

    def expected_auc(self, probability_B: Tensor) -> float:
        """The expected share of pairs of a positive and a negative sample in which the positive one scores higher.

        sum over i != j of p_i (1 - p_j) ([s_i > s_j] + [s_i = s_j] / 2), over the same sum without the brackets. Of the
        probabilities themselves it is the Bayes AUC: no score reaches more.

        Args:
            probability_B: of a positive label, 0 to 1.

        Raises:
            ValueError: all labels are certain to be alike.
        """
        positive_B, negative_B = probability_B.double(), 1 - probability_B.double()
        positive_T, negative_T, itself_T = map(self._summed, (positive_B, negative_B, positive_B * negative_B))
        below_T = negative_T.cumsum(0) - negative_T
        won = (positive_T * (below_T + negative_T / 2) - itself_T / 2).sum()
        pairs = positive_T.sum() * negative_T.sum() - itself_T.sum()
        if not pairs > 0:
            raise ValueError("an AUC needs samples with both labels, but all of these certainly have the same")
        return float(won / pairs)

    def _summed(self, each_B: Tensor) -> Tensor:
        """Over the samples of each score: float64 (T,)."""
        return torch.zeros(self._num_different, dtype=torch.float64).index_add_(0, self._of_B, each_B)
