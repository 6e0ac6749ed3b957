"""Holds the scores of clips as columns in which missing values are marked, and evaluates parsed expressions on them.

Each part of an expression knows where in the text it begins, so that errors point there.

Where a score is missing, a comparison is neither true nor false. `and`, `or` and `not` then return what is certain
(Kleene's logic). If x is missing and y is 2, `x > 1 or y > 1` is true. A value without a finite result, such as 1 / 0,
is missing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.curate.record.ledger import FACTS, ClipRecord

Numbers = NDArray[np.float64]  # NaN where a clip has no such score
Flags = NDArray[np.bool_]
Comparator = Literal["<", "<=", ">", ">=", "==", "!="]
FunctionName = Literal["+", "-", "*", "/", "min", "max", "abs"]
_COMPARE: dict[str, Callable[[Numbers, Numbers], Flags]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal,
}  # fmt: skip
OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_COMPUTE: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Labels:
    """A column of words."""

    words: tuple[str, ...]  #: those that occur, each once
    codes: NDArray[np.int32]  #: for each clip, the index of its word in `words`, -1 if it has none

    @classmethod
    def of(cls, values: Sequence[object]) -> "Labels":
        """From one word, or None, per clip."""
        words = tuple(sorted({value for value in values if isinstance(value, str)}))
        places: dict[object, int] = {word: place for place, word in enumerate(words)}
        return cls(words, np.array([places.get(value, -1) for value in values], np.int32))


@dataclass(slots=True)
class Table:
    """What rules read."""

    columns: Mapping[str, Numbers | Labels]  #: by name; a column that is not here is missing from every clip
    alive: Flags  #: clips that did not fail, which alone are decided on, and of which percentiles are taken
    microseconds: NDArray[np.int64]  #: how long each clip lasts
    #: still images: no rule drops one for a score that an image cannot have
    images: Flags = field(default_factory=lambda: np.zeros(0, bool))
    _percentiles: dict[tuple[str, float], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.images) != len(self.alive):
            self.images = np.zeros(len(self.alive), bool)

    def __len__(self) -> int:
        return len(self.alive)

    def take(self, places: Sequence[int]) -> "Table":
        """Some of the clips; percentiles are those of these clips."""
        at = np.array(places, np.int64)
        columns = {
            name: Labels(column.words, column.codes[at]) if isinstance(column, Labels) else column[at]
            for name, column in self.columns.items()
        }
        return Table(columns, self.alive[at], self.microseconds[at], self.images[at])

    def numbers(self, name: str) -> Numbers:
        """A column of numbers.

        Raises:
            ValueError: it holds words.
        """
        column = self.columns.get(name)
        if isinstance(column, Labels):
            raise ValueError(f"{name!r} holds words such as {', '.join(column.words[:3])}, but is used as a number")
        return np.full(len(self), np.nan) if column is None else column

    def labels(self, name: str) -> Labels:
        """A column of words; every word of a column of numbers is missing."""
        column = self.columns.get(name)
        return column if isinstance(column, Labels) else Labels((), np.full(len(self), -1, np.int32))

    def percentile(self, name: str, percent: float) -> float:
        """The percentile, linearly interpolated, among clips that did not fail and have the score; NaN if none has."""
        if (name, percent) not in self._percentiles:
            values = self.numbers(name)
            values = values[self.alive & ~np.isnan(values)]
            found = float(np.percentile(values, percent)) if len(values) else float("nan")
            self._percentiles[name, percent] = found
        return self._percentiles[name, percent]


def table_of(records: Sequence[ClipRecord]) -> Table:
    """The scores and facts of all records."""
    names = dict.fromkeys(name for record in records for name in record.scores)
    columns: dict[str, Numbers | Labels] = {}
    for name in names:
        values = [record.scores.get(name) for record in records]
        if any(isinstance(value, str) for value in values):
            columns[name] = Labels.of(values)
        else:
            numbers = np.array([np.nan if value is None else value for value in values], np.float64)
            columns[name] = np.where(np.isfinite(numbers), numbers, np.nan)
    facts = {name: np.array([float(record.value(name)) for record in records]) for name in FACTS}
    alive = np.array([record.message is None for record in records], bool)
    images = np.array([record.is_image for record in records], bool)
    lasts = np.array([record.duration_us for record in records], np.int64)
    return Table({**facts, **columns}, alive, lasts, images)


#: Columns of scores.parquet that say what became of a clip and where it is from; rules do not read them
NOT_SCORES = frozenset(
    {"clip_id", "source", "first_frame", "last_frame", "decision", "rule", "message", "duplicate_of", "caption"}
)


def read_table(path: Path) -> tuple[Table, dict[str, list[object]]]:
    """The table of a finished curation, and those of its columns that are no scores, as lists.

    Raises:
        UserError: there is no such file.
        DataError: it is damaged, or not the table of a curation.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UserError(f"there is no {path}; give the folder of a curation that has finished")
    try:
        found = pq.read_table(path)
        others = {name: found[name].to_pylist() for name in sorted(NOT_SCORES)}
        names = [name for name in found.column_names if name not in NOT_SCORES]
        columns: dict[str, Numbers | Labels] = {}
        numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
        for name in names:
            column, kind = found[name].combine_chunks(), found[name].type
            if pa.types.is_string(kind):
                encoded = column.dictionary_encode()
                codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
                columns[name] = Labels(tuple(encoded.dictionary.to_pylist()), codes.astype(np.int32))
            elif any(is_kind(kind) for is_kind in numeric):
                numbers = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
                columns[name] = np.where(np.isfinite(numbers), numbers, np.nan)
            # Rules cannot read columns of other types, such as lists.
        frames = np.asarray(found["last_frame"], np.float64) - np.asarray(found["first_frame"], np.float64)
        seconds = np.asarray(found["duration_s"], np.float64)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a table of a curation, or is damaged ({error})") from error
    alive = np.array([message is None for message in others["message"]], bool)
    images = np.isnan(seconds)  # an image has no duration
    columns["num_frames"] = np.where(images, np.nan, frames)
    return Table(columns, alive, np.round(np.nan_to_num(seconds) * 1e6).astype(np.int64), images), others


@dataclass(frozen=True, slots=True)
class Number:
    """A number."""

    at: int
    value: float


@dataclass(frozen=True, slots=True)
class Word:
    """A text in quotes, for comparing with a column of labels."""

    at: int
    text: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table."""

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Percentile:
    """The value of a column below which `percent` of the clips lie that did not fail and have that score."""

    at: int
    column: str
    percent: float


@dataclass(frozen=True, slots=True)
class Function:
    """A function of numbers, or two of them joined by a sign."""

    at: int
    name: FunctionName
    arguments: tuple["Numeric", ...]


@dataclass(frozen=True, slots=True)
class CompareExpr:
    """Two numbers compared."""

    at: int
    op: Comparator
    left: "Numeric"
    right: "Numeric"


@dataclass(frozen=True, slots=True)
class OneOf:
    """Whether a label is one of some words."""

    at: int
    column: Column
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """Whether a clip has no such score."""

    at: int
    column: Column


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite."""

    at: int
    part: "Truth"


@dataclass(frozen=True, slots=True)
class BoolExpr:
    """Parts joined by `and`, or by `or`."""

    at: int
    word: Literal["and", "or"]
    parts: tuple["Truth", ...]


Numeric = Number | Column | Percentile | Function
Truth = CompareExpr | OneOf | Missing | Not | BoolExpr


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """A column as an expression uses it."""

    at: int
    name: str
    kind: Literal["number", "label"] | None  #: its use; None where either will do (`is missing`)
    words: tuple[Word, ...] = ()  #: the words it is compared with, if it is a label


def uses(part: Truth | Numeric) -> Iterator[ColumnUse]:
    """Every use of a column, from left to right."""
    match part:
        case Column(at, name) | Percentile(at, name, _):
            yield ColumnUse(at, name, "number")
        case OneOf(_, Column(at, name), words):
            yield ColumnUse(at, name, "label", words)
        case Missing(_, Column(at, name)):
            yield ColumnUse(at, name, None)
        case CompareExpr(_, _, left, right):
            yield from uses(left)
            yield from uses(right)
        case Not(_, inner):
            yield from uses(inner)
        case Function(_, _, parts) | BoolExpr(_, _, parts):
            for each in parts:
                yield from uses(each)


@dataclass(frozen=True, slots=True)
class Verdict:
    """For every clip, whether an expression is certainly true or certainly false; if neither, it is unknown."""

    true: Flags
    false: Flags


def truth(part: Truth, table: Table) -> Verdict:
    """Evaluate an expression for every clip."""
    match part:
        case CompareExpr(_, op, left, right):
            one, other = number(left, table), number(right, table)
            if op in OPPOSITE:  # with NaN both are false
                true, false = _COMPARE[op](one, other), _COMPARE[OPPOSITE[op]](one, other)
            else:
                true = np.equal(one, other)
                false = ~true & ~np.isnan(one) & ~np.isnan(other)
                true, false = (true, false) if op == "==" else (false, true)
            return Verdict(np.broadcast_to(true, len(table)), np.broadcast_to(false, len(table)))
        case OneOf(_, column, words):
            labels, wanted = table.labels(column.name), {word.text for word in words}
            # The last entry is for -1, a clip without the label.
            true = np.array([*(word in wanted for word in labels.words), False])[labels.codes]
            return Verdict(true, ~true & (labels.codes >= 0))
        case Missing(_, column):
            values = table.columns.get(column.name)
            missing = values.codes < 0 if isinstance(values, Labels) else np.isnan(table.numbers(column.name))
            return Verdict(missing, ~missing)
        case Not(_, inner):
            verdict = truth(inner, table)
            return Verdict(verdict.false, verdict.true)
        case BoolExpr(_, word, parts):
            verdicts = [truth(each, table) for each in parts]
            every, some = np.logical_and.reduce, np.logical_or.reduce
            of_true, of_false = (every, some) if word == "and" else (some, every)
            return Verdict(of_true([one.true for one in verdicts]), of_false([one.false for one in verdicts]))


def number(part: Numeric, table: Table) -> Numbers:
    """A number for every clip, or one number for all; NaN where it is missing."""
    match part:
        case Number(_, value):
            return np.array(value)
        case Column(_, name):
            return table.numbers(name)
        case Percentile(_, name, percent):
            return np.array(table.percentile(name, percent))
        case Function(_, name, arguments):
            found, *others = (number(each, table) for each in arguments)
            with np.errstate(all="ignore"):
                for other in others:
                    found = _COMPUTE[name](found, other)
            return np.where(np.isfinite(found), np.abs(found) if name == "abs" else found, np.nan)
