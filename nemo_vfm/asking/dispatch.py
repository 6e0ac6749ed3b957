# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Sends questions as fast as pace and budget allow, and yields how each one ended."""

import heapq
import itertools
import math
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue

from nemo_vfm.asking.answer_key import answer_key
from nemo_vfm.asking.attempt import Attempts, Outcome, PendingQuestion, Retry
from nemo_vfm.asking.budget import Budget, Cost, Price, estimated_tokens
from nemo_vfm.asking.concurrency_limit import ConcurrencyLimit, Ticket
from nemo_vfm.asking.journal import OpenJournal
from nemo_vfm.asking.question import BudgetedModel, ChatModel, Failure, Question, Reply
from nemo_vfm.asking.recall import recalled
from nemo_vfm.asking.worker_threads import WorkerThreads
from nemo_vfm.core.errors import NemoVfmError

_SHARED_WAIT_S = 0.05  # before another look at a limit that others have used up


class Dispatch:
    """One call of `Asker.ask`: the thread that reads the replies sends questions, and others wait for the model.

    Args:
        chat: the model.
        limit: how many may be under way.
        journal: answers of before; None has none.
        budget: where the cost of each attempt is reserved.
        price: of the model.
        attempts: makes them.
    """

    def __init__(
        self, chat: ChatModel, limit: ConcurrencyLimit, journal: OpenJournal | None, budget: Budget, price: Price,
        attempts: Attempts,
    ) -> None:  # fmt: skip
        self._chat, self._limit, self._journal, self._budget, self._price = chat, limit, journal, budget, price
        self._attempts, self._threads, self._identity = attempts, WorkerThreads(), chat.identity()
        self._outcomes: SimpleQueue[tuple[PendingQuestion, Outcome]] = SimpleQueue()
        self._waiting: list[tuple[float, int, PendingQuestion]] = []  # to be sent later; a heap by time
        self._numbers = itertools.count()
        self._same: dict[str, list[Question]] = {}  # by key of a question on its way: all that get its answer
        self._in_flight = 0
        self._next: PendingQuestion | None = None  # the first that needs a place
        self._needs_budget = False  # something has to end before anything is sent

    def all(self, source: Iterator[Question]) -> Iterator[Reply | Failure]:
        """Every question's end."""
        try:
            yield from self._send_all(source)
            while self._next or self._in_flight or self._waiting:
                yield from self._next_ends()
                yield from self._send_all(source)
        finally:
            self._threads.close()

    def _send_all(self, source: Iterator[Question]) -> Iterator[Reply]:
        """Send as many as may be; yield what was answered before on the way, which needs no place."""
        while True:
            self._next = self._next or (yield from self._fresh(source))
            if self._needs_budget or self._limit.wait_s(time.monotonic()) > 0:
                return
            if (asked := self._due()) is None:
                asked, self._next = self._next, None
            if asked is None:
                return
            self._send(asked)

    def _due(self) -> PendingQuestion | None:
        """One that waits, and may be sent now."""
        if self._waiting and self._waiting[0][0] <= time.monotonic():
            return heapq.heappop(self._waiting)[2]
        return None

    def _fresh(self, source: Iterator[Question]) -> Generator[Reply, None, PendingQuestion | None]:
        """The next question that is not answered and not on its way; those before it are yielded or noted."""
        for question in source:
            key = answer_key(self._identity, question)
            said = None if self._journal is None else recalled(self._journal, key)
            if said is not None:
                self._budget.settle(Cost(), self._price.cost(said.tokens_in, said.tokens_out))
                yield Reply(question, said, key, recalled=True)
            elif key in self._same:
                self._same[key].append(question)
            else:
                self._same[key] = [question]
                return PendingQuestion(question, key)
        return None

    def _send(self, asked: PendingQuestion) -> None:
        """Start an attempt; put it back where the budget or the pace has no room."""
        asked.cost = self._cost(asked.question)
        if not self._budget.reserve(asked.cost):
            if not self._in_flight:
                raise self._budget.stop(asked.cost)
            self._needs_budget = True  # what is under way may come to less than was reserved
            return self._wait(asked)
        ticket = self._limit.send(time.monotonic())
        if ticket is None:
            self._budget.release(asked.cost)
            return self._wait(asked)
        self._in_flight += 1
        return self._threads.submit(partial(self._attempt, asked, ticket))

    def _attempt(self, asked: PendingQuestion, ticket: Ticket) -> None:
        """On another thread. An error that nobody foresaw must reach the one who waits, too."""
        try:
            outcome = self._attempts.make(asked, ticket)
        except BaseException as error:
            outcome = error
        self._outcomes.put((asked, outcome))

    def _cost(self, question: Question) -> Cost:
        if not self._budget.limits or not isinstance(self._chat, BudgetedModel):
            return Cost()
        try:
            return self._price.cost(estimated_tokens(question.built()), self._chat.longest_answer_tokens())
        except NemoVfmError:
            return Cost()  # the attempt will meet the same error, and report it

    def _wait(self, asked: PendingQuestion) -> None:
        heapq.heappush(self._waiting, (asked.due_s, next(self._numbers), asked))

    def _next_ends(self) -> Iterator[Reply | Failure]:
        """Wait for an outcome, or until something may be sent; yield what has ended."""
        try:
            asked, outcome = self._outcomes.get(timeout=self._timeout_s())
        except Empty:
            return
        self._in_flight -= 1
        self._needs_budget = False
        if isinstance(outcome, BaseException):
            raise outcome
        if isinstance(outcome, Retry):
            self._wait(asked)
            return
        for question in self._same.pop(asked.key):
            yield replace(outcome, question=question)

    def _timeout_s(self) -> float | None:
        """After how long something may be sent without an outcome before; None where only an outcome helps."""
        now_s = time.monotonic()
        pause_s = self._limit.wait_s(now_s)
        if self._needs_budget or (pause_s == math.inf and self._in_flight):
            return None
        if pause_s > 0:
            return min(pause_s, _SHARED_WAIT_S) if pause_s == math.inf else pause_s
        if self._waiting:
            return max(0.0, self._waiting[0][0] - now_s)
        return None if self._in_flight else 0.0
