"""Asks models many questions, and yields each reply or failure as soon as it is there."""

import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue

from nemo_vfm.asking.attempt import Attempts, Outcome, PendingQuestion, Retry
from nemo_vfm.asking.budget import Budget, Price, TokenCost, estimated_tokens
from nemo_vfm.asking.journal import Journal, OpenJournal, find_answer
from nemo_vfm.asking.pace import ConcurrencyLimit, Pace, Ticket
from nemo_vfm.asking.question import BudgetedModel, ChatModel, Failure, FreeModel, HasPlace, Question, Reply, answer_key
from nemo_vfm.core import progress
from nemo_vfm.core.errors import NemoVfmError

_SHARED_WAIT_S = 0.05  # before another look at a limit that others have used up
_AHEAD = 64  # questions read for a model that has no place, so that another is not kept waiting behind them
_numbers = itertools.count()


class Lane:
    """One model of several, with its pace: what waits for it, in order, and what is tried again at a later time."""

    def __init__(self, chat: ChatModel, limit: ConcurrencyLimit, price: Price, attempts: Attempts) -> None:
        self._chat = chat
        self.limit, self.price, self.attempts, self.identity = limit, price, attempts, chat.identity()
        self.fresh: deque[PendingQuestion] = deque()
        self.in_flight = 0
        self.later: list[tuple[float, int, PendingQuestion]] = []  # a heap by time

    def wait(self, asked: PendingQuestion) -> None:
        """Keep it until it is due."""
        heapq.heappush(self.later, (asked.due_s, next(_numbers), asked))

    def pop_sendable(self, now_s: float) -> PendingQuestion | None:
        """Take what may be sent now; None where there is nothing, or no place."""
        if self.limit.wait_s(now_s) > 0:
            return None
        if self.later and self.later[0][0] <= now_s:
            return heapq.heappop(self.later)[2]
        return self.fresh.popleft() if self.fresh else None

    def cost(self, asked: PendingQuestion) -> TokenCost:
        """What an attempt may come to."""
        if not isinstance(self._chat, BudgetedModel):
            return TokenCost()
        try:
            return self.price.cost(
                estimated_tokens(asked.question.build_messages()), self._chat.longest_answer_tokens()
            )
        except NemoVfmError:
            return TokenCost()  # the attempt will meet the same error, and report it

    def sends_in_s(self, now_s: float) -> float:
        """After how long something may be sent without an outcome before; infinite where only an outcome helps."""
        if not self.fresh and not self.later:
            return math.inf
        pause_s = self.limit.wait_s(now_s)
        if pause_s == math.inf:
            return math.inf if self.in_flight else _SHARED_WAIT_S
        return max(pause_s, 0.0 if self.fresh else self.later[0][0] - now_s, 0.0)


class Asker:
    """Asks models. What was answered before is taken from the journal; every question ends as reply or failure.

    Args:
        chat: the model.
        others: more models by name, as a question's `model` names them; each has a pace of its own.
        journal: where answers are kept; None keeps none, and every question is asked.
        pace: how many questions are under way; waiting for their turn counts as nothing.
        budget: what they may cost, over all calls of `ask`, and of all askers that share it; None limits nothing.
        tries: attempts at a question on which the service fails: time-outs, broken connections, 408, other 5xx, half
            answers and empty ones. Refusals (429, 503, 529) do not count: `pace.patience_s` limits them.
    """

    def __init__(
        self, *, chat: ChatModel, others: Mapping[str, ChatModel] | None = None, journal: Journal | None = None,
        pace: Pace = Pace(), budget: Budget | None = None, tries: int = 4,
    ) -> None:  # fmt: skip
        if tries < 1:
            raise ValueError(f"tries is {tries}; it must be at least 1")
        self.chat, self.journal, self.pace, self.tries = chat, journal, pace, tries
        self.budget = Budget() if budget is None else budget
        self._models = {"": chat, **(others or {})}
        self._prices, self._limits = dict[str, Price](), dict[str, ConcurrencyLimit]()
        for name, model in self._models.items():
            self._limits[name] = pace.limit_of(model.place()) if isinstance(model, HasPlace) else pace.new_limit()
            self._prices[name] = Price(million_in=0.0, million_out=0.0)
            if isinstance(model, BudgetedModel):
                self._prices[name] = self.budget.price_of(model.model_name())
            elif self.budget.is_limited and not (isinstance(model, FreeModel) and model.is_free()):
                raise ValueError(f"a budget needs the model's name and the longest answer, but {type(model).__name__} "
                                 "has no model_name() and longest_answer_tokens()")  # fmt: skip

    def price(self, model: str = "") -> Price:
        """What one of the models costs; a zero price where it has none."""
        return self._prices[model]

    def ready(self) -> None:
        """Raise UserError where nothing could be asked."""
        for model in self._models.values():
            model.ready()

    def ask(self, questions: Iterable[Question]) -> Iterator[Reply | Failure]:
        """Replies and failures as they come, one a question. Read more from `questions` only as places get free.

        `questions` may have none for now: it is asked again after each reply, as long as any is under way.

        Raises:
            BudgetExceeded: the next question might cost more than is left.
            UserError: the journal is in use; the service refuses us, or has refused everything for `pace.patience_s`.
        """
        with nullcontext() if self.journal is None else self.journal.open() as journal:
            lanes = {}
            for name, model in self._models.items():
                limit, price = self._limits[name], self._prices[name]
                attempts = Attempts(model, limit, journal, self.budget, price, self.tries, self.pace.patience_s)
                lanes[name] = Lane(model, limit, price, attempts)
            try:
                yield from Dispatch(lanes, journal, self.budget).all(iter(questions))
            finally:
                progress.set_wait_reason("")


class WorkerThreads:
    """Threads that wait for tasks. They are daemons: after Ctrl-C a process does not wait for a service's time-out."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle, self._count = threading.Semaphore(0), 0

    def submit(self, task: Callable[[], None]) -> None:
        """Run it at once; a task reports its own errors."""
        if not self._idle.acquire(blocking=False):
            self._count += 1
            threading.Thread(target=self._work, name=f"asking-{self._count}", daemon=True).start()
        self._tasks.put(task)

    def close(self) -> None:
        """End each thread after its present task, without waiting."""
        for _ in range(self._count):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            self._idle.release()


class Dispatch:
    """One call of `Asker.ask`: the thread that reads the replies sends questions, and others wait for the models."""

    def __init__(self, lanes: Mapping[str, Lane], journal: OpenJournal | None, budget: Budget) -> None:
        self._lanes, self._journal, self._budget, self._threads = lanes, journal, budget, WorkerThreads()
        self._ahead = 1 if len(lanes) == 1 else _AHEAD
        self._outcomes: SimpleQueue[tuple[PendingQuestion, Outcome]] = SimpleQueue()
        self._same: dict[str, list[Question]] = {}  # by key of a question on its way: all that get its answer
        self._needs_budget = False  # something has to end before anything is sent

    def all(self, source: Iterator[Question]) -> Iterator[Reply | Failure]:
        """Every question's end."""
        try:
            while True:
                yield from self._send_all(source)
                if not any(lane.fresh or lane.later or lane.in_flight for lane in self._lanes.values()):
                    return
                # Wait for an outcome, or until something may be sent; yield what has ended.
                now_s = time.monotonic()
                first_s = (
                    math.inf if self._needs_budget else min(lane.sends_in_s(now_s) for lane in self._lanes.values())
                )
                try:
                    asked, outcome = self._outcomes.get(timeout=None if first_s == math.inf else first_s)
                except Empty:
                    continue
                lane = self._lanes[asked.question.model]
                lane.in_flight -= 1
                self._needs_budget = False
                if isinstance(outcome, BaseException):
                    raise outcome
                if isinstance(outcome, Retry):
                    lane.wait(asked)
                    continue
                first, *others = self._same.pop(asked.key)
                yield replace(outcome, question=first)
                later = replace(outcome, recalled=True) if isinstance(outcome, Reply) else outcome
                for question in others:  # as if they had come a moment later
                    yield replace(later, question=question)
        finally:
            self._threads.close()

    def _send_all(self, source: Iterator[Question]) -> Iterator[Reply]:
        """Send as many as may be; yield what was answered before on the way, which needs no place."""
        sent = True
        while sent:
            # Read questions as long as none waits for long; what was answered before is yielded at once.
            while all(len(lane.fresh) < self._ahead for lane in self._lanes.values()):
                if (question := next(source, None)) is None:
                    break
                lane = self._lanes[question.model]
                key = answer_key(lane.identity, question)
                said = None if self._journal is None else find_answer(self._journal, key)
                if said is not None:
                    self._budget.settle(TokenCost(), lane.price.cost(said.tokens_in, said.tokens_out))
                    yield Reply(question, said, key, recalled=True)
                elif key in self._same:
                    self._same[key].append(question)
                else:
                    self._same[key] = [question]
                    lane.fresh.append(PendingQuestion(question, key))
            sent = False
            for lane in self._lanes.values():
                while not self._needs_budget and (asked := lane.pop_sendable(time.monotonic())):
                    sent = self._send(lane, asked) or sent
                    if self._ahead == 1:
                        break  # a source may have the next question only after this one

    def _send(self, lane: Lane, asked: PendingQuestion) -> bool:
        """Start an attempt; put it back, and say no, where the budget or the pace has no room."""
        asked.cost = lane.cost(asked) if self._budget.is_limited else TokenCost()
        if not self._budget.reserve(asked.cost):
            if not any(one.in_flight for one in self._lanes.values()):
                raise self._budget.exceeded_error(asked.cost)
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
