"""Limits what questions may cost, in tokens and in money: reserved before asking, settled after."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from nemo_vfm.asking.question import Messages
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.json_value import Json

_BYTES_PER_TOKEN = 3  # fewer than the 4 of English text, so that a question rarely costs more than was reserved
_MEDIA_TOKENS = 1500  # a picture or a window of video
_MESSAGE_TOKENS = 4  # what a chat format puts around each message


class BudgetExceeded(UserError):
    """The next question might cost more than is left. Every answer is kept; with a larger budget the run continues."""


@dataclass(frozen=True, slots=True)
class TokenCost:
    """What questions and answers come to."""

    tokens_in: int = 0  #: of questions
    tokens_out: int = 0  #: of answers
    money: float = 0.0  #: in the currency of the prices

    def __add__(self, other: "TokenCost") -> "TokenCost":
        return TokenCost(self.tokens_in + other.tokens_in, self.tokens_out + other.tokens_out, self.money + other.money)

    def __sub__(self, other: "TokenCost") -> "TokenCost":
        return TokenCost(self.tokens_in - other.tokens_in, self.tokens_out - other.tokens_out, self.money - other.money)

    @property
    def tokens(self) -> int:
        """Both ways."""
        return self.tokens_in + self.tokens_out


class Price:
    """What a model costs.

    Args:
        million_in: a million tokens of questions; 0 is a price, too.
        million_out: a million tokens of answers.
    """

    def __init__(self, *, million_in: float, million_out: float) -> None:
        if min(million_in, million_out) < 0:
            raise ValueError(f"million_in {million_in} and million_out {million_out} must be at least 0")
        self.million_in, self.million_out = million_in, million_out

    def cost(self, tokens_in: int, tokens_out: int) -> TokenCost:
        """(tokens_in million_in + tokens_out million_out) / 10^6, with the tokens."""
        return TokenCost(tokens_in, tokens_out, (tokens_in * self.million_in + tokens_out * self.million_out) / 1e6)


class Budget:
    """Limits the cost of questions, including reused answers of earlier runs. Without limits it only counts.

    Askers given the same budget share it; it is thread-safe.

    Args:
        tokens: of questions and answers together; None sets no limit.
        money: in the currency of the prices; None sets no limit.
        prices: by model, as its service calls it. If money is limited, a model without one is refused.
    """

    def __init__(
        self, *, tokens: int | None = None, money: float | None = None, prices: Mapping[str, Price] | None = None
    ) -> None:
        if any(value is not None and value < 0 for value in (tokens, money)):
            raise ValueError(f"tokens {tokens} and money {money} must be at least 0")
        self.tokens, self.money, self.prices = tokens, money, dict(prices or {})
        self.spent, self._reserved, self._lock = TokenCost(), TokenCost(), threading.Lock()

    @property
    def is_limited(self) -> bool:
        """Whether anything is limited."""
        return self.tokens is not None or self.money is not None

    def price_of(self, model: str) -> Price:
        """The price of a model; a zero price where there is none.

        Raises:
            ValueError: there is none, and money is limited.
        """
        if model not in self.prices and self.money is not None:
            known = ", ".join(sorted(self.prices)) or "none"
            raise ValueError(f"the budget limits money to {self.money:g}, but has no price for the model "
                             f"{model!r} (it has {known}): give the price of a million tokens each way; 0 is "
                             "allowed")  # fmt: skip
        return self.prices.get(model, _FREE)

    def reserve(self, cost: TokenCost) -> bool:
        """Reserve a cost. False, reserving nothing, if a limit would be exceeded."""
        with self._lock:
            total = self.spent + self._reserved + cost
            # Sums of floats are off in the last digits, and the whole budget may be spent.
            if self.money is not None and total.money > self.money * (1 + 1e-9):
                return False
            if self.tokens is not None and total.tokens > self.tokens:
                return False
            self._reserved += cost
            return True

    def settle(self, reserved: TokenCost, actual: TokenCost) -> None:
        """Replace a reservation by the actual cost; if the service reports no usage, charge the whole reservation."""
        with self._lock:
            self._reserved -= reserved
            self.spent += actual if actual.tokens else reserved

    def release(self, reserved: TokenCost) -> None:
        """Release a reservation: the question was not answered, and cost nothing."""
        with self._lock:
            self._reserved -= reserved

    def exceeded_error(self, next_one: TokenCost) -> BudgetExceeded:
        """The error that says what was spent, and what to do."""
        money = "" if self.money is None else f", {self.spent.money:.4g} of {self.money:g} in money"
        tokens = "" if self.tokens is None else f" of {self.tokens:,}"
        return BudgetExceeded(
            f"the budget is spent: {self.spent.tokens:,}{tokens} tokens{money}, and the next question may take "
            f"{next_one.tokens:,} tokens. Every answer is kept: raise the budget and run again to continue"
        )


_FREE = Price(million_in=0.0, million_out=0.0)


def estimated_tokens(messages: Messages) -> int:
    """About how many tokens messages have; a service counts them only afterwards."""
    return sum(_tokens(message) + _MESSAGE_TOKENS for message in messages)


def _tokens(part: Json) -> int:
    if isinstance(part, str):
        return -(-len(part.encode(errors="replace")) // _BYTES_PER_TOKEN)
    if isinstance(part, dict):
        if str(part.get("type", "")) in ("image_url", "video_url", "input_audio"):
            return _MEDIA_TOKENS
        return sum(map(_tokens, part.values()))
    return sum(map(_tokens, part)) if isinstance(part, list | tuple) else 0
