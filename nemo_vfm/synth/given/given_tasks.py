"""Reads tasks from given rows: prompts, or conversations whose last answer is left out."""

from collections.abc import Iterable, Iterator

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.given.row_source import (
    GivenRow,
    RowSource,
    as_task,
    is_flagged,
    kind_of_value,
    licence_of,
    messages_of,
)
from nemo_vfm.synth.programs.row_program import Program, RowTask, TaskSource


class GivenTasks(TaskSource):
    """Tasks that you have, such as prompts of users, problems with their answers, or the rows of another run.

    Args:
        rows: where they are.
        column: with a prompt (a text) or a conversation (a list of messages).
        answer: column with the right answer; None where there is none.
        licence: column with a row's licence; None takes the column `licence` where a row has it.
        flag: column of a moderation's verdict; None where there is none.
        turns: of the user that are kept; None keeps all.
    """

    def __init__(
        self, *, rows: RowSource, column: str = "messages", answer: str | None = None, licence: str | None = None,
        flag: str | None = None, turns: int | None = None,
    ) -> None:  # fmt: skip
        if not column or (turns is not None and turns < 1):
            raise ValueError(f"column {column!r} names a column, and turns {turns} must be at least 1")
        self.rows, self.column, self.answer, self.licence = rows, column, answer, licence
        self.flag, self.turns = flag, turns

    def all_tasks(self) -> Program[Iterable[RowTask]]:
        """See `TaskSource`: in the order of the rows, read as far as needed."""
        yield from ()
        return self.each()

    def each(self) -> Iterator[RowTask]:
        """One after the other."""
        for row in self.rows.given_rows():
            if row.fault:
                raise UserError(f"{row.where} cannot be read: {row.fault}")
            messages = as_task(messages_of(row, self.column), row.where, self.turns)
            flagged = self.flag is not None and is_flagged(row, self.flag)
            truth: Json = None if self.answer is None else row.value(self.answer)
            if isinstance(truth, bool) or not isinstance(truth, str | int | float | None):
                raise UserError(f"column {self.answer} of {row.where} holds {kind_of_value(truth)}, expected a text or "
                                "a number")  # fmt: skip
            yield RowTask(
                messages, origin(row), None if truth is None else str(truth), licence_of(row, self.licence), flagged
            )


def origin(row: GivenRow) -> dict[str, Json]:
    """What a row of an earlier run was made from, and as `given` and `given_id` the row itself."""
    parents = row.values.get("parents")
    named = {"given_id": row.values["id"]} if isinstance(row.values.get("id"), str | int) else {}
    return {**(parents if isinstance(parents, dict) else {}), "given": row.where, **named}
