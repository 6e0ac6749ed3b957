# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Limits what questions may cost, in tokens and in money: reserved before asking, settled after."""

import threading
from dataclasses import dataclass

from nemo_vfm.asking.question import Messages
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.json_value import Json

_BYTES_PER_TOKEN = 3  # fewer than the 4 of English text, so that a question rarely costs more than was reserved
_MEDIA_TOKENS = 1500  # a picture or a window of video


class BudgetSpent(UserError):
    """The next question might cost more than is left. Every answer is kept; with more budget the run goes on."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens of questions and of answers.

    Args:
        tokens_in: of questions.
        tokens_out: of answers.
    """

    tokens_in: int = 0
    tokens_out: int = 0

    def plus(self, other: "Cost") -> "Cost":
        """Both together."""
        return Cost(self.tokens_in + other.tokens_in, self.tokens_out + other.tokens_out)

    def minus(self, other: "Cost") -> "Cost":
        """Without the other."""
        return Cost(self.tokens_in - other.tokens_in, self.tokens_out - other.tokens_out)


class Budget:
    """What questions may cost, answers of earlier runs that are used again included. Without arguments nothing limits.

    Args:
        tokens: of questions and answers together; None does not limit them.
        money: in the currency of the prices; None does not limit it.
        price_in: of a million tokens of questions.
        price_out: of a million tokens of answers.
    """

    def __init__(
        self, *, tokens: int | None = None, money: float | None = None, price_in: float | None = None,
        price_out: float | None = None,
    ) -> None:  # fmt: skip
        if money is not None and (price_in is None or price_out is None):
            raise ValueError(f"money is limited to {money:g}, but price_in is {price_in} and price_out {price_out}: "
                             "give what a million tokens cost each way; 0 is a price, too")  # fmt: skip
        if any(value is not None and value < 0 for value in (tokens, money, price_in, price_out)):
            raise ValueError(f"tokens {tokens}, money {money}, price_in {price_in}, price_out {price_out}: at least 0")
        self.tokens, self.money = tokens, money
        self.price_in, self.price_out = price_in or 0.0, price_out or 0.0

    @property
    def limits(self) -> bool:
        """Whether anything is limited."""
        return self.tokens is not None or self.money is not None

    def allows(self, cost: Cost) -> bool:
        """Whether so much may be spent in all."""
        tokens = cost.tokens_in + cost.tokens_out
        return (self.tokens is None or tokens <= self.tokens) and (self.money is None or self.price(cost) <= self.money)

    def price(self, cost: Cost) -> float:
        """(tokens_in price_in + tokens_out price_out) / 10^6."""
        return (cost.tokens_in * self.price_in + cost.tokens_out * self.price_out) / 1e6


class Spending:
    """What was spent of a budget, and what is reserved for questions under way. Threads may share it.

    Args:
        budget: the limits.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._spent, self._reserved, self._lock = Cost(), Cost(), threading.Lock()

    @property
    def spent(self) -> Cost:
        """By all that was settled."""
        return self._spent

    def reserve(self, cost: Cost) -> bool:
        """Set it aside; False, and nothing is, where spent, reserved and this would be too much."""
        with self._lock:
            if not self.budget.allows(self._spent.plus(self._reserved).plus(cost)):
                return False
            self._reserved = self._reserved.plus(cost)
            return True

    def settle(self, reserved: Cost, actual: Cost) -> None:
        """Replace a reservation by what it came to; a service that counts nothing is taken to have used it all."""
        with self._lock:
            self._reserved = self._reserved.minus(reserved)
            self._spent = self._spent.plus(reserved if actual == Cost() else actual)

    def release(self, reserved: Cost) -> None:
        """Give a reservation back: the question was not answered, and cost nothing."""
        with self._lock:
            self._reserved = self._reserved.minus(reserved)

    def stop(self, next_one: Cost) -> BudgetSpent:
        """The error that says what was spent, and what to do."""
        spent, budget = self._spent, self.budget
        money = "" if budget.money is None else f", {budget.price(spent):.4g} of {budget.money:g} in money"
        tokens = "" if budget.tokens is None else f" of {budget.tokens:,}"
        return BudgetSpent(
            f"the budget is spent: {spent.tokens_in + spent.tokens_out:,}{tokens} tokens{money}, and the next question "
            f"may take {next_one.tokens_in + next_one.tokens_out:,} tokens. Every answer is kept: raise the budget and "
            "run again to go on"
        )


def estimated_tokens(messages: Messages) -> int:
    """About how many tokens messages have; a service counts them only afterwards."""
    return sum(_tokens(message) + 4 for message in messages)


def _tokens(part: Json) -> int:
    if isinstance(part, str):
        return -(-len(part.encode(errors="replace")) // _BYTES_PER_TOKEN)
    if isinstance(part, dict):
        if str(part.get("type", "")) in ("image_url", "video_url", "input_audio"):
            return _MEDIA_TOKENS
        return sum(map(_tokens, part.values()))
    return sum(map(_tokens, part)) if isinstance(part, list | tuple) else 0
