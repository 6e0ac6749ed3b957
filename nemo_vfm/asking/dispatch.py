"""Sends questions as fast as pace and budget allow, and yields how each one ended."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue

from nemo_vfm.asking.answer_key import answer_key
from nemo_vfm.asking.attempt import Outcome, PendingQuestion, Retry
from nemo_vfm.asking.budget import Budget, Cost
from nemo_vfm.asking.concurrency_limit import Ticket
from nemo_vfm.asking.journal import OpenJournal
from nemo_vfm.asking.lane import Lane
from nemo_vfm.asking.question import Failure, Question, Reply
from nemo_vfm.asking.recall import recalled
from nemo_vfm.asking.worker_threads import WorkerThreads

_AHEAD = 64  # questions read for a model that has no place, so that another is not kept waiting behind them


class Dispatch:
    """One call of `Asker.ask`: the thread that reads the replies sends questions, and others wait for the models.

    Args:
        lanes: by name of the model.
        journal: answers of before; None has none.
        budget: where the cost of each attempt is reserved.
    """

    def __init__(self, lanes: Mapping[str, Lane], journal: OpenJournal | None, budget: Budget) -> None:
        self._lanes, self._journal, self._budget, self._threads = lanes, journal, budget, WorkerThreads()
        self._ahead = 1 if len(lanes) == 1 else _AHEAD
        self._outcomes: SimpleQueue[tuple[PendingQuestion, Outcome]] = SimpleQueue()
        self._same: dict[str, list[Question]] = {}  # by key of a question on its way: all that get its answer
        self._needs_budget = False  # something has to end before anything is sent

    def all(self, source: Iterator[Question]) -> Iterator[Reply | Failure]:
        """Every question's end."""
        try:
            yield from self._send_all(source)
            while any(lane.has_any() for lane in self._lanes.values()):
                yield from self._next_ends()
                yield from self._send_all(source)
        finally:
            self._threads.close()

    def _send_all(self, source: Iterator[Question]) -> Iterator[Reply]:
        """Send as many as may be; yield what was answered before on the way, which needs no place."""
        sent = True
        while sent:
            yield from self._read(source)
            sent = False
            for lane in self._lanes.values():
                while not self._needs_budget and (asked := lane.sendable(time.monotonic())):
                    sent = self._send(lane, asked) or sent
                    if self._ahead == 1:
                        break  # a source may have the next question only after this one

    def _read(self, source: Iterator[Question]) -> Iterator[Reply]:
        """Read questions, as long as none waits for long; what was answered before is yielded at once."""
        while all(len(lane.fresh) < self._ahead for lane in self._lanes.values()):
            if (question := next(source, None)) is None:
                return
            lane = self._lanes[question.model]
            key = answer_key(lane.identity, question)
            said = None if self._journal is None else recalled(self._journal, key)
            if said is not None:
                self._budget.settle(Cost(), lane.price.cost(said.tokens_in, said.tokens_out))
                yield Reply(question, said, key, recalled=True)
            elif key in self._same:
                self._same[key].append(question)
            else:
                self._same[key] = [question]
                lane.fresh.append(PendingQuestion(question, key))

    def _send(self, lane: Lane, asked: PendingQuestion) -> bool:
        """Start an attempt; put it back, and say no, where the budget or the pace has no room."""
        asked.cost = lane.cost(asked) if self._budget.limits else Cost()
        if not self._budget.reserve(asked.cost):
            if not any(one.in_flight for one in self._lanes.values()):
                raise self._budget.stop(asked.cost)
            self._needs_budget = True  # what is under way may come to less than was reserved
            lane.wait(asked)
            return False
        ticket = lane.limit.send(time.monotonic())
        if ticket is None:
            self._budget.release(asked.cost)
            lane.wait(asked)
            return False
        lane.in_flight += 1
        self._threads.submit(partial(self._attempt, lane, asked, ticket))
        return True

    def _attempt(self, lane: Lane, asked: PendingQuestion, ticket: Ticket) -> None:
        """On another thread. An error that nobody foresaw must reach the one who waits, too."""
        try:
            outcome = lane.attempts.make(asked, ticket)
        except BaseException as error:
            outcome = error
        self._outcomes.put((asked, outcome))

    def _next_ends(self) -> Iterator[Reply | Failure]:
        """Wait for an outcome, or until something may be sent; yield what has ended."""
        try:
            asked, outcome = self._outcomes.get(timeout=self._timeout_s())
        except Empty:
            return
        lane = self._lanes[asked.question.model]
        lane.in_flight -= 1
        self._needs_budget = False
        if isinstance(outcome, BaseException):
            raise outcome
        if isinstance(outcome, Retry):
            lane.wait(asked)
            return
        first, *others = self._same.pop(asked.key)
        yield replace(outcome, question=first)
        later = replace(outcome, recalled=True) if isinstance(outcome, Reply) else outcome
        for question in others:  # as if they had come a moment later
            yield replace(later, question=question)

    def _timeout_s(self) -> float | None:
        """After how long something may be sent without an outcome before; None where only an outcome helps."""
        if self._needs_budget:
            return None
        now_s = time.monotonic()
        first_s = min(lane.sends_in_s(now_s) for lane in self._lanes.values())
        return None if first_s == math.inf else first_s
