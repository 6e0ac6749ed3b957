"""Defines programs that ask, generators that yield questions and are sent the answers, and what filters their rows."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

from nemo_vfm.core.types.json_value import Json

Result = TypeVar("Result")
GENERATOR = "generator"


@dataclass(frozen=True, slots=True)
class Ask:
    """One question of a program."""

    prompt: str | None  #: the name of the prompt; None sends `before` as it is
    values: Mapping[str, str] = field(default_factory=dict)  #: what stands in its places
    before: "Sequence[Json | Ask]" = ()  #: messages before it; a question stands for the message that it is sent as
    sample: int = 0  #: which answer to the same question, from 0
    model: str = GENERATOR  #: who is asked: the generator, or another by its role


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """What a program gets in the place of an answer."""

    reason: str  #: a sentence


class ModelAnswer(str):
    """An answer, as programs get it; it knows where it is from.

    Attributes:
        asked: the prompt with its version, who was asked, and the key of the answer in the journal.
        truncated: whether a limit of tokens cut it.
        thought: of a reasoning model, which is no part of the text.
    """

    asked: Mapping[str, str]
    truncated: bool
    thought: str

    @classmethod
    def of(cls, text: str, asked: Mapping[str, str], truncated: bool, thought: str) -> "ModelAnswer":
        """The text, with that."""
        answer = cls(text)
        answer.asked, answer.truncated, answer.thought = asked, truncated, thought
        return answer


Answers = Sequence[str | NoAnswer]
Program = Generator[Sequence[Ask], Answers, Result]


class RowFailed(Exception):
    """A row cannot be made; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A row that is good enough."""

    messages: Sequence[Mapping[str, Json]]  #: in chat form
    parents: Mapping[str, Json] = field(default_factory=dict)  #: what it was made from, outermost first
    scores: Mapping[str, float] = field(default_factory=dict)  #: of judges, by name
    verifier: str = ""  #: what has checked it without a model, and what was found; empty where nothing has
    licence: str = ""  #: of the data that it was made from; empty takes that of the run
    #: further columns, such as `tools`, or `chosen` and `rejected`
    more: Mapping[str, Json] = field(default_factory=dict)
    earlier: Sequence[ModelAnswer] = ()  #: answers to programs before its own that it is made of


@dataclass(frozen=True, slots=True)
class DroppedRow:
    """A row that is not."""

    rule: str  #: which it broke


#: Makes one row; RowFailed where it cannot be made.
RowProgram = Program[Draft | DroppedRow]


class AsksModels(Protocol):
    """What its questions need; a class that derives from it needs nothing but what it says itself."""

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """The names of its prompts, and of the places in each."""
        return {}

    def roles(self) -> Sequence[str]:
        """Of the models that it asks beside the generator."""
        return ()


class Pipeline(AsksModels, Protocol):
    """Makes rows."""

    def max_rows(self) -> int | None:
        """How many it could make at most; None where its data decide."""
        return None

    def candidates(self) -> Program[Iterable[RowProgram]]:
        """Programs of one row each, in an order that answers and data alone decide; read only as far as needed."""
        ...


def ended_row(end: Draft | DroppedRow | str) -> RowProgram:
    """A row of which all is known, and nothing is asked; a text says why there is none."""
    yield from ()
    if isinstance(end, str):
        raise RowFailed(end)
    return end


def texts_of(answers: Answers) -> list[str]:
    """All answers."""
    for one in answers:
        if isinstance(one, NoAnswer):
            raise RowFailed(one.reason)
    return [str(one) for one in answers]


def is_conversation(value: Json) -> bool:
    """Whether it is a list of messages."""
    return isinstance(value, list) and bool(value) and all(
        isinstance(one, Mapping) and isinstance(one.get("role"), str) for one in value
    )  # fmt: skip


def say(role: str, text: str) -> dict[str, Json]:
    """A message."""
    return {"role": role, "content": text.strip()}


@dataclass(frozen=True, slots=True)
class RowTask:
    """What is to be answered."""

    messages: Sequence[Mapping[str, Json]]  #: a conversation that ends with the user's turn
    parents: Mapping[str, Json] = field(default_factory=dict)  #: what it was made from
    truth: str | None = None  #: the right answer; None where there is none, or it is not known
    licence: str = ""  #: of the data that it is from
    flagged: bool = False  #: whether a moderation of the data has found it unsafe


def parents_of(task: str, place: Mapping[str, str]) -> dict[str, Json]:
    """What a task that a model wrote was made from: its place, such as topic and level, and its words."""
    return {**{name: value for name, value in place.items() if value}, "task": task}


class TaskSource(AsksModels, Protocol):
    """Has tasks."""

    def max_rows(self) -> int | None:
        """How many there are at most; None where its data decide."""
        return None

    def all_tasks(self) -> Program[Iterable[RowTask]]:
        """All of them, in an order that answers and data alone decide."""
        ...


class TaskPipeline(Pipeline, Protocol):
    """Makes at most one row of each of its tasks."""

    tasks: TaskSource

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """Those of the tasks."""
        return self.tasks.prompts()

    def roles(self) -> Sequence[str]:
        """Those of the tasks."""
        return self.tasks.roles()

    def max_rows(self) -> int | None:
        """As many as there are tasks."""
        return self.tasks.max_rows()

    def candidates(self) -> Program[Iterable[RowProgram]]:
        """A row of each task."""
        tasks = yield from self.tasks.all_tasks()
        return map(self.row, tasks)

    def row(self, task: RowTask) -> RowProgram:
        """What becomes of a task."""
        ...


@runtime_checkable
class RowFilter(Protocol):
    """Looks at one row by itself."""

    def broken_rule(self, draft: Draft) -> str | None:
        """Which rule the row breaks, in a few words that rows share; None where it breaks none."""
        ...


@runtime_checkable
class AskingFilter(AsksModels, Protocol):
    """Asks a model about one row."""

    def rule_program(self, draft: Draft) -> Program[str | None]:
        """As `RowFilter.broken_rule`."""
        ...


@runtime_checkable
class OrderedFilter(Protocol):
    """Compares a row with those before it."""

    def make_rule(self) -> Callable[[Draft], str | None]:
        """For one run: called with rows in their order, it says which rule a row breaks. It may keep what it passes."""
        ...


Filter = RowFilter | AskingFilter | OrderedFilter


def apply_filters(candidate: RowProgram, filters: Sequence[Filter]) -> RowProgram:
    """The candidate's row, dropped where it breaks a rule that needs no other row."""
    result = yield from candidate
    for one in filters:
        rule = None
        if isinstance(result, DroppedRow):
            break
        if isinstance(one, RowFilter):
            rule = one.broken_rule(result)
        elif isinstance(one, AskingFilter):
            rule = yield from one.rule_program(result)
        if rule:
            result = DroppedRow(rule)
    return result
