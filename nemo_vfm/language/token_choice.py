"""Turns logits into the probabilities of the next token, and samples from them.

Shape letters: B batch, V vocabulary.
"""

import math

import torch
from torch import Tensor


class Choice:
    """Sampling parameters. Filters apply in the order of the arguments, each to the tokens that the last one left.

    Args:
        temperature: logits are divided by it; 0 always takes the most likely token.
        top_k: keeps this many of the most likely tokens; None keeps all.
        top_p: keeps the fewest most likely tokens whose probabilities reach this sum (Holtzman et al. 2020, arXiv
            1904.09751); 1 keeps all.
        min_p: drops tokens less likely than this share of the most likely one (arXiv 2407.01082); 0 keeps all.
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

    def probabilities(self, logits_BV: Tensor) -> Tensor:
        """(B, V), fp32, each row's sum 1. ValueError if a row has NaN or infinity; -inf excludes a token."""
        logits = logits_BV.float()
        if logits.isnan().any() or logits.amax(1).isinf().any():
            raise ValueError("the scores of a text's next token are not finite; the model is not trained, or damaged")
        if self.temperature == 0:
            return torch.nn.functional.one_hot(logits.argmax(1), logits.shape[1]).float()
        logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[1]:
            kth_B1 = logits.topk(self.top_k, 1).values[:, -1:]
            logits = logits.masked_fill(logits < kth_B1, -math.inf)
        probs = logits.softmax(1)
        if self.top_p < 1:
            ordered, tokens = probs.sort(dim=1, descending=True, stable=True)
            beyond = ordered.cumsum(1) - ordered >= self.top_p
            probs = probs.masked_fill(torch.empty_like(beyond).scatter(1, tokens, beyond), 0)
        probs = probs.masked_fill(probs < self.min_p * probs.amax(1, keepdim=True), 0)
        return probs / probs.sum(1, keepdim=True)

    def draw(self, logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
        """(B,) token ids, sampled by the inverse of the cumulative probabilities at `uniform_B`, from [0, 1)."""
        cumulative = self.probabilities(logits_BV).double().cumsum(1)
        # The last sum is 1 only up to rounding: without the factor a token of probability 0 could be sampled.
        found = torch.searchsorted(cumulative, uniform_B.double()[:, None] * cumulative[:, -1:], right=True)
        return found[:, 0].clamp_max(logits_BV.shape[1] - 1)
