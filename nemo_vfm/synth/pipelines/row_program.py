# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Defines programs that ask: generators that yield questions and are sent the answers."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from nemo_vfm.core.types.json_value import Json

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Ask:
    """One question of a program.

    Args:
        prompt: the name of the prompt.
        values: what stands in its places.
        before: messages before it; a question stands for the message that it is sent as.
        sample: which answer to the same question, from 0.
    """

    prompt: str
    values: Mapping[str, str]
    before: "Sequence[Json | Ask]" = ()
    sample: int = 0


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """What a program gets in the place of an answer.

    Args:
        reason: a sentence.
    """

    reason: str


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
    """

    messages: Sequence[Mapping[str, Json]]
    parents: Mapping[str, Json] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that is not.

    Args:
        rule: which it broke.
    """

    rule: str


class Pipeline(Protocol):
    """Makes rows."""

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """The names of its prompts, and of the places in each."""
        ...

    def most_rows(self) -> int:
        """How many it could make at most."""
        ...

    def candidates(self) -> Program[Sequence["Candidate"]]:
        """What rows are made of, in an order that answers alone decide."""
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
