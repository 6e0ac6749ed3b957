"""Asks models many questions, and yields each reply or failure as soon as it is there."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext

from nemo_vfm.asking.attempt import Attempts
from nemo_vfm.asking.budget import Budget, Price
from nemo_vfm.asking.dispatch import Dispatch
from nemo_vfm.asking.journal import Journal, OpenJournal
from nemo_vfm.asking.lane import Lane
from nemo_vfm.asking.pace import Pace
from nemo_vfm.asking.question import BudgetedModel, ChatModel, Failure, FreeModel, HasPlace, Question, Reply
from nemo_vfm.core import progress


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
        self._prices = {name: _price(self.budget, model) for name, model in self._models.items()}
        self._limits = {
            name: pace.limit_of(model.place()) if isinstance(model, HasPlace) else pace.new_limit()
            for name, model in self._models.items()
        }

    @property
    def limit(self) -> int:
        """How many questions may be under way to the first model now."""
        return self._limits[""].limit

    def price(self, model: str = "") -> Price:
        """What one of the models costs; nothing where it has no price."""
        return self._prices[model]

    def ready(self) -> None:
        """Raise UserError where nothing could be asked."""
        for model in self._models.values():
            model.ready()

    def ask(self, questions: Iterable[Question]) -> Iterator[Reply | Failure]:
        """Replies and failures as they come, one a question. Read more from `questions` only as places get free.

        `questions` may have none for now: it is asked again after each reply, as long as any is under way.

        Raises:
            BudgetSpent: the next question might cost more than is left.
            UserError: the journal is in use; the service refuses us, or has refused everything for `pace.patience_s`.
        """
        with nullcontext() if self.journal is None else self.journal.open() as journal:
            lanes = {name: self._lane(name, model, journal) for name, model in self._models.items()}
            try:
                yield from Dispatch(lanes, journal, self.budget).all(iter(questions))
            finally:
                progress.set_wait_reason("")

    def _lane(self, name: str, model: ChatModel, journal: OpenJournal | None) -> Lane:
        limit, price = self._limits[name], self._prices[name]
        attempts = Attempts(model, limit, journal, self.budget, price, self.tries, self.pace.patience_s)
        return Lane(model, limit, price, attempts)


def _price(budget: Budget, chat: ChatModel) -> Price:
    """The model's price; ValueError where the budget cannot be kept."""
    if isinstance(chat, BudgetedModel):
        return budget.price_of(chat.model_name())
    if budget.limits and not (isinstance(chat, FreeModel) and chat.is_free()):
        raise ValueError(f"a budget needs the model's name and the longest answer, but {type(chat).__name__} has no "
                         "model_name() and longest_answer_tokens()")  # fmt: skip
    return Price(million_in=0.0, million_out=0.0)
