"""Lists the videos and images that a table names, with the spans, captions and scores that it gives them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.sanitize import clean
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.caption.caption_types import CAPTION_COLUMNS
from nemo_vfm.curate.decide.score_table import NOT_SCORES
from nemo_vfm.curate.record.ledger import FACTS, SourceFile, TableSpan
from nemo_vfm.curate.sources.video_source import Subset
from nemo_vfm.data.sources.table_file import TableRow, check_suffix, rows_of

#: What the table of a curation has anyway, and the nameless column that pandas writes its row numbers to
_TAKEN = frozenset({*FACTS, *NOT_SCORES, *CAPTION_COLUMNS, ""})
Kind = type[float] | type[str]


class TableSource:
    """The files that a CSV, JSON Lines or Parquet file names, whole or in spans.

    A row with `start_s` or `end_s` is a clip of exactly the frames that begin in this span; spans may overlap. A row
    without leaves the file to the splitter. All other columns are scores, numbers or labels, that rules may read. A
    file is opened once however many rows name it.

    Args:
        path: the table; its ending says whether it is .csv, .jsonl or .parquet.
        root: folder that paths are relative to and may not leave; None is the table's own.
        video: name of the column with the files' paths.
        start: name of the column with the second at which a span begins, counted from the first frame; empty is 0.
        end: name of the column with the second at which it ends; empty is the end of the video.
        caption: name of the column with captions, which go before all captioners; None reads none.
        scores: the columns that rules may read; None takes all that are left.
        first: at most this many rows, in the order of the table; None takes all.
        share: so large a part of the rows, such as 0.01, spread over all of them and before `first` counts. A larger
            share contains a smaller one. None takes all.
    """

    def __init__(
        self,
        *,
        path: Path,
        root: Path | None = None,
        video: str = "video",
        start: str = "start_s",
        end: str = "end_s",
        caption: str | None = "caption",
        scores: Sequence[str] | None = None,
        first: int | None = None,
        share: float | None = None,
    ) -> None:
        check_suffix(path)
        if taken := sorted(_TAKEN & set(scores or ())):
            raise ValueError(f"the score {taken[0]!r} is computed for every clip; rename the column of the table")
        self.path = local(path, "a table of videos")
        self.root = self.path.parent if root is None else local(root, "the folder of a table's videos")
        self.video, self.start, self.end, self.caption = video, start, end, caption
        self.scores = None if scores is None else tuple(scores)
        self.first, self.share, self._subset = first, share, Subset(first, share)

    def score_columns(self) -> Mapping[str, Kind]:
        return self._contents[0]

    def files(self) -> list[SourceFile]:
        """Every file that a row names, sorted by name, with its rows.

        Raises:
            UserError: the table is absent, lacks a column, or names no file below `root`.
            DataError: a row is not what its columns promise, or contradicts another.
        """
        inside = self.root.resolve()
        chosen = self._subset.of(self._contents[1], lambda one: f"{_below(one[0], inside)}\0{one[1].seconds}", "rows")
        by_path: dict[Path, list[TableSpan]] = {}
        for path, span in chosen:
            by_path.setdefault(path, []).append(span)
        files = sorted(self._files(by_path, inside), key=lambda file: file.name)
        if all(file.passed_over for file in files):
            raise UserError(f"{self.path} names no file below {self.root}; are its paths relative to root?")
        return files

    @cached_property
    def _contents(self) -> tuple[Mapping[str, Kind], Sequence[tuple[Path, TableSpan]]]:
        """The scores' kinds, and of each row its file and what it says."""
        own = [self.start, self.end, *([self.caption] if self.caption else [])]
        rows = list(rows_of(self.path, [self.video], None if self.scores is None else [*own, *self.scores]))
        names = dict.fromkeys(name for row in rows for name in row.values)
        # Refuse rows of JSON without a column that others have, and columns that are asked for and in no row.
        for name in (self.start, self.end, self.caption):
            if name in names and (without := next((row for row in rows if name not in row.values), None)):
                raise DataError(f"{without.place} has no column {name}, which other rows have; write null for no value")
        defaults = ("start_s", "end_s", "caption", None)
        asked = [*(one for one in (self.start, self.end, self.caption) if one not in defaults), *(self.scores or ())]
        if rows and (absent := [name for name in asked if name not in names]):
            raise UserError(f"{self.path} has no column {absent[0]}; it has {', '.join(names)[:500]}")
        columns = [name for name in names if name not in {self.video, *own}] if self.scores is None else self.scores
        if taken := [name for name in columns if name in _TAKEN and name]:
            warn(f"{self.path}: the columns {', '.join(taken)} are not read, since they are computed for every clip")
        kinds: dict[str, Kind] = {}
        for name in (name for name in columns if name not in _TAKEN):
            for row in rows:
                if (value := self._score(row, name)) is None:
                    continue
                if type(value) is not kinds.setdefault(name, type(value)):
                    words = {float: "numbers", str: "words"}
                    raise DataError(
                        f"{row.place} has {row.values[name]!r} under {name!r}, which holds {words[kinds[name]]} in "
                        f"earlier rows; leave unknown values empty, or name the scores to read: source.scores=[...]"
                    )
            kinds.setdefault(name, float)
        inside = self.root.resolve()
        return kinds, [(row.path(self.video, inside), self._span(row, kinds)) for row in rows]

    def _score(self, row: TableRow, name: str) -> float | str | None:
        value = row.values.get(name)
        if value is None or value == "":
            return None
        number = _number(value, from_text=self.path.suffix.lower() == ".csv")
        if number is not None:
            return number
        if isinstance(value, str):
            return clean(value)
        raise DataError(f"{row.place} has {str(value)[:80]!r} under {name!r}, which is neither a number nor a word; "
                        "name the columns that rules read: source.scores=[...]")  # fmt: skip

    def _span(self, row: TableRow, kinds: Mapping[str, Kind]) -> TableSpan:
        seconds: list[float | None] = []
        for name in (self.start, self.end):
            value = row.values.get(name)
            is_given = value is not None and value != ""
            number = _number(value, from_text=True) if is_given else None
            if is_given and (number is None or not math.isfinite(number)):
                raise DataError(
                    f"{row.place} has {str(value)[:80]!r} under {name!r} where seconds are expected, such as 12.5"
                )
            seconds.append(number)
        start_s, end_s = seconds
        if not 0 <= (start_s or 0.0) < (math.inf if end_s is None else end_s):
            raise DataError(f"{row.place} has a span from {start_s or 0:g} to {end_s or 0:g} s; "
                            f"{self.start} must be at least 0 and {self.end} greater")  # fmt: skip
        caption = row.text(self.caption) if self.caption in row.values and self.caption is not None else ""
        found = ((name, self._score(row, name)) for name in kinds)
        scores = {
            name: value
            for name, value in found
            if isinstance(value, str) or (value is not None and math.isfinite(value))
        }
        return TableSpan(row.place, start_s, end_s, caption, scores)

    def _files(self, by_path: Mapping[Path, Sequence[TableSpan]], inside: Path) -> Iterator[SourceFile]:
        repeated = 0
        for path, spans in by_path.items():
            if not path.is_relative_to(inside):
                yield SourceFile(path, _below(path, inside), passed_over="outside_root")
                continue
            by_seconds: dict[tuple[float, float] | None, TableSpan] = {}
            for span in spans:
                before = by_seconds.setdefault(span.seconds, span)
                repeated += before is not span
                if (before.caption, before.scores) != (span.caption, span.scores):
                    raise DataError(f"{span.row} and {before.row} differ for the same frames; keep one")
            whole = by_seconds.get(None)
            file = SourceFile(path, _below(path, inside), root=self.root, rows=tuple(by_seconds.values()))
            if whole and len(by_seconds) > 1:
                other = next(span for span in by_seconds.values() if span is not whole)
                raise DataError(f"{whole.row} names a whole video, but {other.row} names a span of it; give "
                                "all rows of a video a span, or none")  # fmt: skip
            if file.is_image and not whole:
                raise DataError(f"{spans[0].row} gives a start or end for an image; leave them empty")
            yield file
        if repeated:
            warn(f"{repeated} rows of {self.path} are left out as duplicates")


def _below(path: Path, inside: Path) -> str:
    return path.relative_to(inside).as_posix() if path.is_relative_to(inside) else path.as_posix()


def _number(value: Json, *, from_text: bool) -> float | None:
    """A number as one; a text of a format that has no other numbers, too."""
    if isinstance(value, bool | int | float | Decimal) or (from_text and isinstance(value, str)):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    return None
