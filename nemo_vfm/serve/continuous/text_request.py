"""Declares a generation request, the listener that receives its tokens, and the rules that change their scores.

Shape letters: V vocabulary.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from nemo_vfm.language.token_choice import Choice

#: stop (a stop token, or the listener has enough), length, cancelled (nobody listens any more), failed.
TextEnding = Literal["stop", "length", "cancelled", "failed"]


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


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One text to continue, to score, or both."""

    tokens: tuple[int, ...]  #: at least one
    max_new: int  #: tokens that are added at most; 0 only scores
    choice: Choice  #: how the next token is chosen
    seed: int  #: of the draws
    stop: frozenset[int] = frozenset()  #: tokens that end the text; they are no part of it
    score_prompt: bool = False  #: whether the log-probabilities of the given tokens are wanted, too
    #: how many of the likeliest tokens are named at each place; None wants no log-probabilities at all.
    num_top: int | None = None
    #: change scores before the choice; log-probabilities are of those that the model gave.
    rules: TokenRules = field(default_factory=TokenRules)
    #: whether, where no token is added, the head's own outputs after the last one are wanted: a reward's attributes
    wants_outputs: bool = False

    @property
    def places(self) -> int:
        """Tokens whose keys and values are kept: the last new one is never read."""
        return len(self.tokens) + max(0, self.max_new - 1)


@dataclass(frozen=True, slots=True)
class TokenResult:
    """One token of a text."""

    token: int  #: its number
    #: natural logarithm of its probability at temperature 1; None for a text's first token, or where none was wanted.
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  #: (token, log-probability) of the likeliest, in falling order


class TextListener:
    """Is told about a text on the thread that computes, so it must be quick."""

    def prompt(self, results: list[TokenResult]) -> None:
        """The next of the given tokens, if `score_prompt`."""

    def token(self, result: TokenResult) -> bool:
        """A new token; False ends the text."""
        return False

    def outputs(self, values: list[float]) -> None:
        """Finite numbers, before `end`, if `wants_outputs`."""

    def end(self, ending: TextEnding) -> None:
        """The last call."""


class RuledText:
    """The rules of one text's scores, the tokens that end it, and what it has so far."""

    def __init__(self, rules: TokenRules, prompt: Iterable[int], stop: Iterable[int]) -> None:
        self._rules, self._stop = rules, sorted(stop)
        self._seen = set(prompt)
        self._counts = Counter[int]()

    def add(self, token: int) -> None:
        """The text has another token."""
        self._seen.add(token)
        self._counts[token] += 1

    def apply(self, scores_V: Tensor) -> Tensor:
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
