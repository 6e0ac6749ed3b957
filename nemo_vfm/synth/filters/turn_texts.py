"""Takes from a row the texts that a filter looks at."""

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.programs.row_program import Draft

Turns = Literal["user", "assistant", "all"]
_ANSWERS = ("chosen", "rejected")  # columns of preferences, each with the assistant's turn


def require_turns(turns: str) -> None:
    """Refuse a name that is none."""
    if turns not in get_args(Turns):
        raise ValueError(f"turns is {turns!r}; take one of {', '.join(get_args(Turns))}")


def turns_of(draft: Draft, turns: Turns) -> list[str]:
    """The text of each turn of the user, of the assistant, or of all (system messages too), as far as it has one.

    The answers of a row of preferences are turns of the assistant.
    """
    messages = [*draft.messages, *(message for name in _ANSWERS for message in answer_of(draft, name))]
    return [text for message in messages if turns in ("all", message.get("role"))
            if isinstance(text := message.get("content"), str) and text.strip()]  # fmt: skip


def join_turns(draft: Draft, turns: Turns) -> str:
    """All of them as one text, with a blank line between two."""
    return "\n\n".join(turns_of(draft, turns))


def answer_of(draft: Draft, column: str) -> Iterator[Mapping[str, Json]]:
    """The messages of a further column, such as `chosen`; none where the row has no such messages."""
    found = draft.more.get(column)
    yield from (message for message in (found if isinstance(found, list) else []) if isinstance(message, Mapping))
