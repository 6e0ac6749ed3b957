"""Makes one attempt at a question, tells pace and budget how it went, and keeps an answer at once."""

import time
from dataclasses import asdict, dataclass, field

from nemo_vfm.asking.budget import Budget, Price, TokenCost
from nemo_vfm.asking.journal import OpenJournal, without_secrets
from nemo_vfm.asking.pace import ConcurrencyLimit, Ticket
from nemo_vfm.asking.question import ChatModel, Failure, HasPlace, Question, Reply
from nemo_vfm.core import progress
from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.log import warn_once
from nemo_vfm.core.network.endpoint import EndpointBusy, EndpointFault, EndpointTimeout, EndpointUnreachable
from nemo_vfm.core.secret import conceal

_BACKOFF_S = 0.25  # after the first fault; doubled with each
#: Where nobody has ever listened, nobody is likely to: so long is waited for a service that starts beside us.
_UNREACHED_PATIENCE_S, _UNREACHED_WAIT_S = 30.0, 2.0


@dataclass(slots=True)
class PendingQuestion:
    """A question on its way."""

    question: Question  #: what is asked
    key: str  #: what its answer is kept under
    faults: int = 0  #: attempts that failed so far
    due_s: float = 0.0  #: when it may be tried again
    cost: TokenCost = field(default_factory=TokenCost)  #: what is reserved for the present attempt


@dataclass(frozen=True, slots=True)
class Retry:
    """An attempt after which another follows, at `due_s` of the question."""


Outcome = Reply | Failure | Retry | BaseException


class Attempts:
    """Makes attempts; several threads may use it. See `Asker` and `Pace` for `tries` and `patience_s`."""

    def __init__(
        self, chat: ChatModel, limit: ConcurrencyLimit, journal: OpenJournal | None, budget: Budget, price: Price,
        tries: int, patience_s: float,
    ) -> None:  # fmt: skip
        self._chat, self._limit, self._journal, self._budget, self._price = chat, limit, journal, budget, price
        self._tries, self._patience_s = tries, patience_s
        self._backoff_s = _BACKOFF_S if isinstance(chat, HasPlace) else 0.0  # one in this process needs no rest

    def make(self, asked: PendingQuestion, ticket: Ticket) -> Outcome:
        """How it went; what concerns all questions comes back as the exception to raise."""
        try:
            messages = asked.question.build_messages()
        except NemoVfmError as error:
            return self._over(asked, ticket, error)
        try:
            said = self._chat.say(messages)
        except EndpointBusy as error:
            self._limit.was_reached |= not isinstance(error, EndpointUnreachable)
            now_s, is_known = time.monotonic(), self._limit.was_reached
            wait_s = self._limit.record_refusal(ticket, now_s, error.retry_after_s if is_known else _UNREACHED_WAIT_S)
            asked.due_s = now_s + wait_s
            self._budget.release(asked.cost)
            refused_s = self._limit.refused_for_s(now_s)
            progress.set_wait_reason(conceal(str(error)))
            if isinstance(error, EndpointUnreachable):  # a bar on a terminal has no place for it
                warn_once(conceal(f"{error}; the question is retried"))
            if not is_known and refused_s >= min(self._patience_s, _UNREACHED_PATIENCE_S):
                return UserError(f"nothing has listened at that address for {refused_s:.0f} s: {error}. Start the "
                                 "service, or correct its address, and run again; every answer is kept")  # fmt: skip
            if refused_s > self._patience_s:
                return UserError(f"only refusals for {refused_s:.0f} s, longer than patience_s; the last: {error}. "
                                 "Every answer is kept: run again when the service takes questions")  # fmt: skip
            return Retry()
        except EndpointFault as error:
            return self._fault(asked, ticket, error)
        except BaseException as error:
            return self._over(asked, ticket, error)
        if said.ending != "blocked" and not said.text.strip():
            return self._fault(asked, ticket, EndpointFault("the model returned nothing"))
        self._limit.record_answer(ticket, time.monotonic())
        progress.set_wait_reason("")
        self._budget.settle(asked.cost, self._price.cost(said.tokens_in, said.tokens_out))
        if said.ending == "blocked":
            return Failure(asked.question, "the model declined", asked.key, blocked=True)
        known = without_secrets(said)
        try:
            if self._journal is not None:
                self._journal.put(asked.key, asdict(known))
        except UserError as error:
            return error
        return Reply(asked.question, known, asked.key)

    def _fault(self, asked: PendingQuestion, ticket: Ticket, error: EndpointFault) -> Outcome:
        timed_out = isinstance(error, EndpointTimeout)
        self._limit.timed_out(ticket) if timed_out else self._limit.record_failure(ticket)
        # A time-out may well have been paid for: nobody says so.
        self._budget.settle(asked.cost, TokenCost()) if timed_out else self._budget.release(asked.cost)
        asked.faults += 1
        progress.set_wait_reason(conceal(str(error)))
        if asked.faults >= self._tries:
            return Failure(
                asked.question, f"{asked.faults} attempts failed; the last: {conceal(str(error))}", asked.key
            )
        asked.due_s = time.monotonic() + (0.0 if timed_out else self._backoff_s * 2.0 ** (asked.faults - 1))
        return Retry()

    def _over(self, asked: PendingQuestion, ticket: Ticket, error: BaseException) -> Outcome:
        self._limit.record_failure(ticket)
        self._budget.release(asked.cost)
        if isinstance(error, UserError) or not isinstance(error, NemoVfmError):
            return error
        return Failure(asked.question, conceal(str(error)), asked.key)
