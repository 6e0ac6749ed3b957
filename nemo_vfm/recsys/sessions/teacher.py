"""Gives samples of a made log a probability of a click: a logistic function of hidden values, of known AUC.

Shape letters: B samples, R rows of a table, C terms, T different scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_vfm.core.bounds import require_between
from nemo_vfm.recsys.sessions.random_stream import RandomStream
from nemo_vfm.sparse.log_chunk import LogChunk

_LARGEST_SCALE = 1e4
_HALVINGS = 20


class Teacher:
    """P(click) = sigmoid(a z + b), where z is a sum of terms of mean 0 and fixed shares of the variance.

    A term is a dense feature, the mean of a row's hidden values (an id has one, normally distributed), or the
    product of such means of two features, by other hidden values. A product of standardised independent features
    has no linear part, so no regression on single ids can see it. a and b are found by bisection.

    Args:
        auc: Bayes AUC of the probabilities, 0.5 to 1, both excluded.
        rate: their mean.
        single: features that act by themselves.
        pairs: pairs of features that act together.
        dense: dense features.
        pairs_share: share of z's variance that the pairs have, 0 to 1.
        dense_share: share that dense features have; the rest is of `single`.
    """

    def __init__(
        self,
        *,
        auc: float = 0.8,
        rate: float = 0.25,
        single: Sequence[str] = (),
        pairs: Sequence[Sequence[str]] = (),
        dense: Sequence[str] = (),
        pairs_share: float = 0.5,
        dense_share: float = 0.1,
    ) -> None:
        require_between(0.501, 0.999, auc=auc)
        require_between(0.001, 0.999, rate=rate)
        require_between(0, 1, pairs_share=pairs_share, dense_share=dense_share)
        if any(len(pair) != 2 or pair[0] == pair[1] for pair in pairs):
            raise ValueError(f"pairs must each be two different features, got {[list(pair) for pair in pairs]}")
        self.auc, self.rate, self.single, self.dense = auc, rate, tuple(single), tuple(dense)
        self.pairs = tuple((first, second) for first, second in pairs)
        self.shares = {"pairs": pairs_share, "dense": dense_share, "single": 1 - pairs_share - dense_share}
        for name, share in self.shares.items():
            if share < -1e-9 or (share > 1e-9) != bool(getattr(self, name)):
                raise ValueError(
                    f"{name} has the share {share:g} of the variance and {len(getattr(self, name))} features; name "
                    "features for each share above 0, and no others. single gets what pairs_share and dense_share leave"
                )

    def reads(self) -> set[str]:
        """Names of features that the probabilities depend on."""
        return {*self.single, *self.dense, *(name for pair in self.pairs for name in pair)}

    def fit(self, chunk: LogChunk, rows: Mapping[str, int], seed: int) -> "FittedTeacher":
        """Standardise the terms, and find a and b, on these samples."""
        hidden = {
            column: RandomStream(seed, f"hidden/{column}").normal(torch.arange(rows[name]))
            for column, name in self.hidden_columns().items()
        }
        columns = FittedTeacher(self, hidden, {}).columns(chunk)
        standard = {}
        for name, column_B in columns.items():
            mean, deviation = float(column_B.mean()), float(column_B.std(correction=0))
            if not deviation > 1e-9:
                raise ValueError(f"the teacher's term {name} is the same in all samples; give its tables more rows")
            standard[name] = mean, deviation
        z_B = FittedTeacher(self, hidden, standard).score(chunk)
        # a and b of the wanted AUC and mean, by bisection: the AUC rises with a.
        ranks = ScoreRanks(z_B)

        def auc_at(scale: float) -> float:
            return ranks.expected_auc(torch.sigmoid(z_B * scale + _bias(z_B * scale, self.rate)))

        low, high = 0.0, 1.0
        while high < _LARGEST_SCALE and auc_at(high) < self.auc:
            high *= 2
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if auc_at(middle) < self.auc else (low, middle)
        return FittedTeacher(self, hidden, standard, *(high, _bias(z_B * high, self.rate)))

    def hidden_columns(self) -> dict[str, str]:
        """The feature of each column of hidden values: one a single feature, and two a pair."""
        of_pairs = {f"{'*'.join(pair)}/{name}": name for pair in self.pairs for name in pair}
        return {name: name for name in self.single} | of_pairs


@dataclass(frozen=True, eq=False)
class FittedTeacher:
    """A teacher of one log."""

    teacher: Teacher  #: its settings
    hidden: Mapping[str, Tensor]  #: of each column, the hidden values of its table's rows, float64
    #: mean and standard deviation of each column; without, they stay as they are
    standard: Mapping[str, tuple[float, float]]
    scale: float = 1.0  #: a
    bias: float = 0.0  #: b

    def probability(self, chunk: LogChunk) -> Tensor:
        """Of a click: float64 (B,)."""
        return torch.sigmoid(self.score(chunk) * self.scale + self.bias)

    def score(self, chunk: LogChunk) -> Tensor:
        """z: float64 (B,)."""
        teacher, terms = self.teacher, {}  # columns, standardised, and products of them
        for name, column_B in self.columns(chunk).items():
            mean, deviation = self.standard.get(name, (0.0, 1.0))
            terms[name] = (column_B - mean) / deviation
        for pair in teacher.pairs:
            product = "*".join(pair)
            first_B, second_B = (terms[f"{product}/{name}"] for name in pair)
            terms[product] = first_B * second_B
        z_B = torch.zeros(len(chunk), dtype=torch.float64)
        kinds = {"single": teacher.single, "dense": teacher.dense, "pairs": ["*".join(pair) for pair in teacher.pairs]}
        for kind, names in kinds.items():
            for name in names:
                z_B += terms[name] * (teacher.shares[kind] / len(names)) ** 0.5
        return z_B

    def columns(self, chunk: LogChunk) -> dict[str, Tensor]:
        """Dense features, and the mean of each row's hidden values, 0 where it has no ids: float64 (B,) by name."""
        columns = {name: chunk.dense[name].double() for name in self.teacher.dense}
        for column, name in self.teacher.hidden_columns().items():
            value_N = self.hidden[column][chunk.features[name].values_N]
            lengths_B = chunk.features[name].lengths_B
            columns[column] = torch.segment_reduce(value_N, "mean", lengths=lengths_B, initial=0.0, unsafe=True)
        return columns


def _bias(logit_B: Tensor, rate: float) -> float:
    """b such that the mean of sigmoid(logit + b) is the rate: Newton's method, kept inside of a bracket."""
    low, high = float(-logit_B.max()) - 20, float(-logit_B.min()) + 20
    bias = 0.0
    for _ in range(_HALVINGS):
        p_B = torch.sigmoid(logit_B + bias)
        missing, slope = rate - float(p_B.mean()), float((p_B * (1 - p_B)).mean())
        if abs(missing) < 1e-12:
            break
        low, high = (bias, high) if missing > 0 else (low, bias)
        bias = bias + missing / slope if slope > 0 else (low + high) / 2
        bias = bias if low < bias < high else (low + high) / 2
    return bias


class ScoreRanks:
    """Samples in the order of a score, ready for the expected AUC under any probabilities."""

    def __init__(self, score_B: Tensor) -> None:
        different_T, self._of_B = torch.unique(score_B, return_inverse=True)
        self._num_different = len(different_T)

    def expected_auc(self, probability_B: Tensor) -> float:
        """The expected share of pairs of a positive and a negative sample in which the positive one scores higher.

        sum over i != j of p_i (1 - p_j) ([s_i > s_j] + [s_i = s_j] / 2), over the same sum without the brackets. Of the
        probabilities themselves it is the Bayes AUC: no score reaches more.

        Args:
            probability_B: of a positive label, 0 to 1.
        """
        positive_B, negative_B = probability_B.double(), 1 - probability_B.double()
        positive_T, negative_T, itself_T = (
            torch.zeros(self._num_different, dtype=torch.float64).index_add_(0, self._of_B, each_B)
            for each_B in (positive_B, negative_B, positive_B * negative_B)
        )
        below_T = negative_T.cumsum(0) - negative_T
        won = (positive_T * (below_T + negative_T / 2) - itself_T / 2).sum()
        pairs = positive_T.sum() * negative_T.sum() - itself_T.sum()
        if not pairs > 0:
            raise ValueError("an AUC needs samples with both labels, but all of these certainly have the same")
        return float(won / pairs)
