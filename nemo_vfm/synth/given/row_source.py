"""Defines where given rows come from: a file, shards of clips, or the recipe itself."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.permission import SentText
from nemo_vfm.core.types.json_value import Json


@dataclass(frozen=True, slots=True)
class GivenRow:
    """One row as it was given.

    Args:
        where: it stands: a file and a line, or a clip.
        values: by column.
        fault: why it could not be read, in words that rows share; empty where it could.
    """

    where: str
    values: Mapping[str, Json] = field(default_factory=dict)
    fault: str = ""

    def value(self, column: str) -> Json:
        """What a column holds.

        Raises:
            UserError: there is no such column.
        """
        if column not in self.values:
            raise UserError(f"{self.where} has no column {column}; it has {', '.join(sorted(self.values)) or 'none'}")
        return self.values[column]

    def text(self, column: str) -> str:
        """What a column of texts holds.

        Raises:
            UserError: there is no such column, or it holds no text.
        """
        value = self.value(column)
        if not isinstance(value, str):
            raise UserError(f"column {column} of {self.where} holds {kind_of_value(value)}, expected a text")
        return value


class RowSource(Protocol):
    """Has rows."""

    def given_rows(self) -> Iterator[GivenRow]:
        """All of them, in the same order each time, read only as far as needed.

        Raises:
            UserError, DataError: one cannot be read; the text says where.
        """
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
    kinds = {
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return "nothing" if value is None else kinds.get(type(value), type(value).__name__)
