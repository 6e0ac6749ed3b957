"""Selects which next tokens may be drawn, and their probabilities, from the model's scores.

Shape letters: B batch, V vocabulary.
"""

import math

import torch
from torch import Tensor


class Choice:
    """Sampling parameters. Filters apply in the order of the arguments, each to the tokens that the last one left.

    Args:
        temperature: scores are divided by it; 0 always takes the likeliest token.
        top_k: keeps this many of the likeliest tokens; None keeps all.
        top_p: the likeliest words whose probabilities together just reach this are left (Holtzman et al. 2020, arXiv
            1904.09751); 1 leaves all.
        min_p: words less likely than this share of the likeliest one are left out (arXiv 2407.01082); 0 leaves all.
    """

    def __init__(
        self, *, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0, min_p: float = 0.0
    ) -> None:
        if not temperature >= 0 or not math.isfinite(temperature):
            raise ValueError(f"temperature must be at least 0 and finite, got {temperature}")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k must be at least 1, or null for all tokens, got {top_k}")
        if not 0 < top_p <= 1 or not 0 <= min_p < 1:
            raise ValueError(f"top_p must be above 0 and at most 1, min_p from 0 to below 1, got {top_p} and {min_p}")
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, top_p, min_p

    def probabilities(self, scores_BV: Tensor) -> Tensor:
        """(B, V), fp32, each row's sum 1; ValueError where a row's scores are not finite."""
        scores = scores_BV.float()
        if scores.isnan().any() or scores.amax(1).isinf().any():
            raise ValueError("the scores of a text's next token are not finite; the model is not trained, or damaged")
        if self.temperature == 0:
            return torch.nn.functional.one_hot(scores.argmax(1), scores.shape[1]).float()
        scores = scores / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[1]:
            worst_B1 = scores.topk(self.top_k, 1).values[:, -1:]
            scores = scores.masked_fill(scores < worst_B1, -math.inf)
        likely = scores.softmax(1)
        if self.top_p < 1:
            ordered, words = likely.sort(dim=1, descending=True, stable=True)
            reached = ordered.cumsum(1) - ordered >= self.top_p
            likely = likely.masked_fill(torch.empty_like(reached).scatter(1, words, reached), 0)
        likely = likely.masked_fill(likely < self.min_p * likely.amax(1, keepdim=True), 0)
        return likely / likely.sum(1, keepdim=True)

    def draw(self, scores_BV: Tensor, uniform_B: Tensor) -> Tensor:
        """(B,), the word in which each number from [0, 1) falls when probabilities are laid end to end."""
        ends = self.probabilities(scores_BV).double().cumsum(1)
        # The last end is 1 up to rounding, and a word of probability 0 must not be taken for it.
        found = torch.searchsorted(ends, uniform_B.double()[:, None] * ends[:, -1:], right=True)
        return found[:, 0].clamp_max(scores_BV.shape[1] - 1)
