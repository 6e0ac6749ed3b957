"""Holds what waits for one model: questions in their order, and those that are tried again at a later time."""

import heapq
import itertools
import math
from collections import deque

from nemo_vfm.asking.attempt import Attempts, PendingQuestion
from nemo_vfm.asking.budget import Cost, Price, estimated_tokens
from nemo_vfm.asking.concurrency_limit import ConcurrencyLimit
from nemo_vfm.asking.question import BudgetedModel, ChatModel
from nemo_vfm.core.errors import NemoVfmError

_SHARED_WAIT_S = 0.05  # before another look at a limit that others have used up
_numbers = itertools.count()


class Lane:
    """One model of several, with its pace.

    Args:
        chat: the model.
        limit: how many questions may be under way.
        price: of the model.
        attempts: makes them.
    """

    def __init__(self, chat: ChatModel, limit: ConcurrencyLimit, price: Price, attempts: Attempts) -> None:
        self._chat = chat
        self.limit, self.price, self.attempts, self.identity = limit, price, attempts, chat.identity()
        self.fresh: deque[PendingQuestion] = deque()
        self.in_flight = 0
        self._later: list[tuple[float, int, PendingQuestion]] = []  # a heap by time

    def has_any(self) -> bool:
        """Whether anything waits or is under way."""
        return bool(self.fresh or self._later or self.in_flight)

    def wait(self, asked: PendingQuestion) -> None:
        """Keep it until it is due."""
        heapq.heappush(self._later, (asked.due_s, next(_numbers), asked))

    def sendable(self, now_s: float) -> PendingQuestion | None:
        """Take what may be sent now; None where there is nothing, or no place."""
        if self.limit.wait_s(now_s) > 0:
            return None
        if self._later and self._later[0][0] <= now_s:
            return heapq.heappop(self._later)[2]
        return self.fresh.popleft() if self.fresh else None

    def cost(self, asked: PendingQuestion) -> Cost:
        """What an attempt may come to."""
        if not isinstance(self._chat, BudgetedModel):
            return Cost()
        try:
            return self.price.cost(estimated_tokens(asked.question.built()), self._chat.longest_answer_tokens())
        except NemoVfmError:
            return Cost()  # the attempt will meet the same error, and report it

    def sends_in_s(self, now_s: float) -> float:
        """After how long something may be sent without an outcome before; infinite where only an outcome helps."""
        if not self.fresh and not self._later:
            return math.inf
        pause_s = self.limit.wait_s(now_s)
        if pause_s == math.inf:
            return math.inf if self.in_flight else _SHARED_WAIT_S
        return max(pause_s, 0.0 if self.fresh else self._later[0][0] - now_s, 0.0)
