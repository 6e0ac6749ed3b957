"""Changes the scores of a text's next token: biases, penalties for repeating, and no end before a number of tokens.

Shape letters: V vocabulary.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenRules:
    """How scores are changed, in the order of the arguments, before the temperature."""

    bias: Mapping[int, float] = field(default_factory=dict)  #: token -> what is added to its score
    #: scores above 0 of tokens that the prompt or the text has are divided by it, and those below 0 multiplied (Keskar
    #: et al. 2019, arXiv 1909.05858); 1 leaves them.
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0  #: is subtracted for each time that the text has a token; the prompt does not count
    presence_penalty: float = 0.0  #: is subtracted once where the text has a token
    min_tokens: int = 0  #: before so many, no token ends the text

    def change_nothing(self) -> bool:
        """Whether every text would be the same without them."""
        return self == TokenRules()


class RuledText:
    """The rules of one text, and what it has so far.

    Args:
        rules: of its scores.
        prompt: its given tokens.
        stop: tokens that end it.
    """

    def __init__(self, rules: TokenRules, prompt: Iterable[int], stop: Iterable[int]) -> None:
        self._rules, self._stop = rules, sorted(stop)
        self._seen = set(prompt)
        self._counts = Counter[int]()

    def add(self, token: int) -> None:
        """The text has another token."""
        self._seen.add(token)
        self._counts[token] += 1

    def applied(self, scores_V: Tensor) -> Tensor:
        """The changed scores; those that are given stay as they are."""
        rules, found = self._rules, scores_V.clone()

        def numbers(values: Iterable[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(list(values), dtype=dtype, device=found.device)

        if rules.bias:
            found[numbers(rules.bias, torch.long)] += numbers(rules.bias.values(), found.dtype)
        if rules.repetition_penalty != 1:
            seen = numbers(self._seen, torch.long)
            own = found[seen]
            found[seen] = torch.where(own < 0, own * rules.repetition_penalty, own / rules.repetition_penalty)
        if self._counts and (rules.frequency_penalty or rules.presence_penalty):
            counts = numbers(self._counts.values(), found.dtype)
            penalty = counts * rules.frequency_penalty + rules.presence_penalty
            found[numbers(self._counts, torch.long)] -= penalty
        if self._counts.total() < rules.min_tokens:
            found[numbers(self._stop, torch.long)] = -math.inf
        return found
