"""Defines programs that ask: generators that yield questions and are sent the answers."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from nemo_vfm.core.types.json_value import Json

Result = TypeVar("Result")

GENERATOR = "generator"


@dataclass(frozen=True, slots=True)
class Ask:
    """One question of a program.

    Args:
        prompt: the name of the prompt; None sends `before` as it is.
        values: what stands in its places.
        before: messages before it; a question stands for the message that it is sent as.
        sample: which answer to the same question, from 0.
        model: who is asked: the generator, or another by its role.
    """

    prompt: str | None
    values: Mapping[str, str] = field(default_factory=dict)
    before: "Sequence[Json | Ask]" = ()
    sample: int = 0
    model: str = GENERATOR


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """What a program gets in the place of an answer.

    Args:
        reason: a sentence.
    """

    reason: str


class Answer(str):
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
    def of(cls, text: str, asked: Mapping[str, str], truncated: bool, thought: str) -> "Answer":
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
    """A row that is good enough.

    Args:
        messages: in chat form.
        parents: what it was made from, outermost first.
        scores: of judges, by name.
        verifier: what has checked it without a model, and what was found; empty where nothing has.
        licence: of the data that it was made from; empty takes that of the run.
        more: further columns, such as `tools`, or `chosen` and `rejected`.
        earlier: answers to programs before its own that it is made of.
    """

    messages: Sequence[Mapping[str, Json]]
    parents: Mapping[str, Json] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    verifier: str = ""
    licence: str = ""
    more: Mapping[str, Json] = field(default_factory=dict)
    earlier: Sequence[Answer] = ()

    def column(self) -> str:
        """What the row calls its messages: beside two answers to choose from they are a `prompt`, as trainers ask."""
        is_pair = all(is_conversation(self.more.get(name)) for name in ("chosen", "rejected"))
        return "prompt" if is_pair and "prompt" not in self.more else "messages"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that is not.

    Args:
        rule: which it broke.
    """

    rule: str


class AsksModels(Protocol):
    """What its questions need."""

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """The names of its prompts, and of the places in each."""
        ...

    def roles(self) -> Sequence[str]:
        """Of the models that it asks beside the generator."""
        ...


class Pipeline(AsksModels, Protocol):
    """Makes rows."""

    def most_rows(self) -> int | None:
        """How many it could make at most; None where its data decide."""
        ...

    def candidates(self) -> Program[Iterable["Candidate"]]:
        """What rows are made of, in an order that answers and data alone decide; read only as far as needed."""
        ...


class Candidate(Protocol):
    """What one row is made of."""

    def row(self) -> Program[Draft | Dropped]:
        """Make it; RowFailed where it cannot be made."""
        ...


def answered(answers: Answers) -> list[str]:
    """All answers.

    Raises:
        RowFailed: one of them is missing.
    """
    for one in answers:
        if isinstance(one, NoAnswer):
            raise RowFailed(one.reason)
    return [str(one) for one in answers]


def is_conversation(value: Json) -> bool:
    """Whether it is a list of messages."""
    return isinstance(value, list) and bool(value) and all(
        isinstance(one, Mapping) and isinstance(one.get("role"), str) for one in value
    )  # fmt: skip


def said(role: str, text: str) -> dict[str, Json]:
    """A message."""
    return {"role": role, "content": text.strip()}
