"""Declares a generation request and the listener that receives its tokens."""

from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from nemo_vfm.language.token_choice import Choice
from nemo_vfm.serve.continuous.token_rules import TokenRules

#: stop (a stop token, or the listener has enough), length, cancelled (nobody listens any more), failed.
TextEnding = Literal["stop", "length", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One text to continue, to score, or both."""

    tokens: tuple[int, ...]  #: at least one
    most_new: int  #: tokens that are added at most; 0 only scores
    choice: Choice  #: how the next token is chosen
    seed: int  #: of the draws
    stop: frozenset[int] = frozenset()  #: tokens that end the text; they are no part of it
    score_prompt: bool = False  #: whether the log-probabilities of the given tokens are wanted, too
    #: how many of the likeliest tokens are named at each place; None wants no log-probabilities at all.
    num_top: int | None = None
    #: change scores before the choice; log-probabilities are of those that the model gave.
    rules: TokenRules = field(default_factory=TokenRules)

    @property
    def places(self) -> int:
        """Tokens whose keys and values are kept: the last new one is never read."""
        return len(self.tokens) + max(0, self.most_new - 1)


@dataclass(frozen=True, slots=True)
class TokenResult:
    """One token of a text."""

    token: int  #: its number
    #: natural logarithm of its probability at temperature 1; None for a text's first token, or where none was wanted.
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  #: (token, log-probability) of the likeliest, in falling order


class TextListener(Protocol):
    """Is told about a text on the thread that computes, so it must be quick."""

    def prompt(self, results: list[TokenResult]) -> None:
        """The next of the given tokens, if `score_prompt`."""
        ...

    def token(self, result: TokenResult) -> bool:
        """A new token; False ends the text."""
        ...

    def ended(self, ending: TextEnding) -> None:
        """The last call."""
        ...


@runtime_checkable
class TakesOutputs(Protocol):
    """A listener that wants the head's own outputs after a text's last token: a reward model's attributes."""

    def outputs(self, values: list[float]) -> None:
        """Finite numbers, before `ended`; only of a text to which no token is added."""
        ...
