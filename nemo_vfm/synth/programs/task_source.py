"""Defines where tasks come from that several models answer: made from topics, or read from files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.programs.row_program import AsksModels, Program


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be answered.

    Args:
        messages: a conversation that ends with the user's turn.
        parents: what it was made from.
        truth: the right answer; None where there is none, or it is not known.
        licence: of the data that it is from.
        flagged: whether a moderation of the data has found it unsafe.
    """

    messages: Sequence[Mapping[str, Json]]
    parents: Mapping[str, Json] = field(default_factory=dict)
    truth: str | None = None
    licence: str = ""
    flagged: bool = False


class TaskSource(AsksModels, Protocol):
    """Has tasks."""

    def most_rows(self) -> int | None:
        """How many there are at most; None where its data decide."""
        ...

    def all_tasks(self) -> Program[Iterable[Task]]:
        """All of them, in an order that answers and data alone decide."""
        ...
