"""Defines where given rows come from, and reads conversations, flags and licences out of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.permission import SentText
from nemo_vfm.core.network.thought import split_thought
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.programs.row_program import say

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
Messages = list[dict[str, Json]]


@dataclass(frozen=True, slots=True)
class GivenRow:
    """One row as it was given."""

    where: str  #: it stands: a file and a line, or a clip
    values: Mapping[str, Json] = field(default_factory=dict)  #: by column
    fault: str = ""  #: why it could not be read, in words that rows share; empty where it could

    def value(self, column: str) -> Json:
        """What a column holds."""
        if column not in self.values:
            raise UserError(f"{self.where} has no column {column}; it has {', '.join(sorted(self.values)) or 'none'}")
        return self.values[column]

    def text(self, column: str) -> str:
        """What a column of texts holds."""
        value = self.value(column)
        if not isinstance(value, str):
            raise UserError(f"column {column} of {self.where} holds {kind_of_value(value)}, expected a text")
        return value


class RowSource(Protocol):
    """Has rows."""

    def given_rows(self) -> Iterator[GivenRow]:
        """All of them, in the same order each time, read only as far as needed."""
        ...


class ListedRows:
    """Rows that stand in the recipe: samples, and small sets.

    Args:
        rows: values by column.
        name: that they are called by.
    """

    def __init__(self, *, rows: Sequence[Mapping[str, SentText | bool]], name: str = "sample") -> None:
        if not rows:
            raise ValueError("rows is empty: list at least one row")
        self.rows, self.name = tuple(rows), name

    def given_rows(self) -> Iterator[GivenRow]:
        """See `RowSource`."""
        for number, row in enumerate(self.rows, 1):
            yield GivenRow(f"{self.name} row {number}", row)


def kind_of_value(value: Json) -> str:
    """What a value is, in words."""
    kinds = {str: "a text", bool: "a truth value", int: "a number", float: "a number", list: "a list",
             dict: "an object"}  # fmt: skip
    return "nothing" if value is None else kinds.get(type(value), type(value).__name__)


def messages_of(row: GivenRow, column: str) -> Messages:
    """A conversation: a list of messages, or a text that is what the user says."""
    value = row.value(column)
    if isinstance(value, str):
        if not value.strip():
            raise UserError(f"column {column} of {row.where} holds an empty text, expected what the user says")
        return [say("user", value)]
    if not isinstance(value, list) or not value:
        kind = "an empty list" if isinstance(value, list) else kind_of_value(value)
        raise UserError(f"column {column} of {row.where} holds {kind}, expected a text or a list of messages")
    for number, message in enumerate(value, 1):
        where = f"message {number} in column {column} of {row.where}"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            role = f"the role {message.get('role')!r:.40}" if isinstance(message, dict) else kind_of_value(message)
            raise UserError(f"{where} has {role}, expected an object with a role: {', '.join(_ROLES)}")
        content = message.get("content")
        if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
            raise UserError(f"{where} has {kind_of_value(content)} as its content, expected a text")
    return list(map(dict, value))


def as_task(messages: Sequence[Mapping[str, Json]], where: str, turns: int | None = None) -> Messages:
    """The conversation up to a turn of the user; an answer at its end is left out, and so are thoughts before answers.

    Args:
        turns: of the user that are kept at most; None keeps all.
    """
    places = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if turns is not None and len(places) >= turns:
        messages = messages[: places[turns - 1] + 1]
    found = []
    for message in messages:  # templates of reasoning models leave the thoughts of earlier turns out, too
        known = {name: value for name, value in message.items() if name not in ("reasoning_content", "reasoning")}
        if message["role"] == "assistant" and isinstance(message.get("content"), str):
            known["content"] = split_thought(message["content"])[1]
        found.append(known)
    if found[-1]["role"] == "assistant":
        found.pop()
    if not found or found[-1]["role"] != "user":
        last = found[-1]["role"] if found else "nobody"
        raise UserError(
            f"the conversation of {where} ends with a turn of {last}, but a task must end with a turn of the user"
        )
    return found


def is_flagged(row: GivenRow, column: str) -> bool:
    """Whether a moderation has flagged a row: true, 1, a list of categories, or `flagged` in an object or list."""
    value = row.value(column)
    if isinstance(value, dict) and isinstance(value.get("flagged"), bool):
        return bool(value["flagged"])
    if isinstance(value, list):
        if all(isinstance(one, str) for one in value):
            return bool(value)
        if all(isinstance(one, dict) and isinstance(one.get("flagged"), bool) for one in value):
            return any(one["flagged"] for one in value)
    if value is not None and value not in (0, 1):
        raise UserError(f"column {column} of {row.where} holds {kind_of_value(value)}, expected true or false, 0 or 1, "
                        "a list of categories, or an object with flagged")  # fmt: skip
    return bool(value)


def licence_of(row: GivenRow, column: str | None) -> str:
    """The licence of a row; without the name of a column, that in `licence` where it is a text."""
    if column is not None:
        return row.text(column)
    licence = row.values.get("licence")
    return licence if isinstance(licence, str) else ""
