"""Passes given rows through a run's filters: nothing is asked but by a filter."""

from collections.abc import Iterable

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.given.given_tasks import origin
from nemo_vfm.synth.given.row_source import GivenRow, RowSource, licence_of, messages_of
from nemo_vfm.synth.programs.row_program import Draft, Pipeline, Program, RowFailed, RowProgram, say

#: What this run writes anew; a given row's own is kept in `given_row`.
_WRITTEN = ("id", "parents", "scores", "verifier", "licence", "asked", "truncated", "seed")


class GivenRows(Pipeline):
    """Your own rows, as they are.

    A row keeps its columns. What a run writes of each row, such as its id, is kept in the column `given_row`; parents,
    scores, verifier, licence and generator of a row of an earlier run stay what they are.

    Args:
        rows: where they are.
        column: with a conversation (a list of messages), or a prompt (a text).
        answer: column with the answer to a prompt; None where the conversation has it.
        licence: column with a row's licence; None takes the column `licence` where a row has it.
    """

    def __init__(
        self, *, rows: RowSource, column: str = "messages", answer: str | None = None, licence: str | None = None
    ) -> None:
        if not column:
            raise ValueError("column names the column of the conversations")
        self.rows, self.column, self.answer, self.licence = rows, column, answer, licence

    def candidates(self) -> Program[Iterable[RowProgram]]:
        """Each row, in order."""
        yield from ()
        return map(self.row, self.rows.given_rows())

    def row(self, given: GivenRow) -> RowProgram:
        """A row as it was given."""
        yield from ()
        if given.fault:
            raise RowFailed(given.fault)
        column, answer, values = self.column, self.answer, given.values
        messages = messages_of(given, column)
        if answer is not None:
            messages.append(say("assistant", given.text(answer)))
        more = {name: value for name, value in values.items() if name not in (*_WRITTEN, column, answer)}
        models = values.get("models")
        more |= {"generator": values.get("generator"), "models": models if isinstance(models, dict) else {}}
        more["given_row"] = {name: values[name] for name in _WRITTEN if name in values}
        # Of an earlier run; what a stranger calls so may be anything.
        scores: Json = given.values.get("scores")
        numbers = isinstance(scores, dict) and all(type(one) in (int, float) for one in scores.values())
        verifier = given.values.get("verifier")
        return Draft(
            messages, origin(given), dict(scores) if numbers else {},
            verifier if isinstance(verifier, str) else "", licence_of(given, self.licence), more,
        )  # fmt: skip
