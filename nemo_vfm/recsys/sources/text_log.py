"""Reads logs from CSV and JSON Lines with any names of columns or keys."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nemo_vfm.recsys.sources.log_reading import LogPosition, ReadChunk
from nemo_vfm.recsys.sources.named_columns import ColumnLog
from nemo_vfm.recsys.sources.text_records import RecordFiles
from nemo_vfm.recsys.sources.text_values import TextRows


class TextLog(ColumnLog):
    """Anybody's log in CSV or JSON Lines, a record a sample.

    Files that end in .jsonl, .ndjson or .json have a JSON object a line; all others have cells, which may stand in
    double quotes. An id is a whole number (123, also as text or 123.0), or 64 bits of a text's hash, alone or in a
    list. An empty cell, null and a missing key are an empty row of a feature and NaN of a dense number; a record
    without session, time, label or weight is no sample. Spaces around a cell do not count; empty lines are no records.

    Args:
        paths: the files, in order; those with a further .gz are unpacked.
        session: column of whole numbers or texts; None if the log has no sessions, each sample is then its own.
        time: column of whole numbers, in whose unit they stay, or of texts such as 2026-11-27T12:00:00Z, which are
            counted in microseconds; None where records stand in order of time.
        labels: columns of numbers, or of true and false.
        features: columns of ids.
        dense: columns of numbers.
        weight: column of numbers above 0, what each sample counts; None if all count alike.
        log1p: dense numbers x become ln(1 + max(x, 0)).
        lists: features whose texts hold several ids, and what stands between these, such as `"|"`. Lists of JSON need
            none.
        columns: names of the columns of CSV files without a header; None reads the first line of each file.
        delimiter: between cells; None is a tab in files that end in .tsv, and a comma in others.
        missing: texts that say that there is no value, such as NULL.
    """

    def __init__(
        self, *, paths: Sequence[Path], session: str | None, time: str | None, labels: Sequence[str],
        features: Sequence[str], dense: Sequence[str] = (), weight: str | None = None, log1p: bool = False,
        lists: Mapping[str, str] | None = None, columns: Sequence[str] | None = None, delimiter: str | None = None,
        missing: Sequence[str] = ("",),
    ) -> None:  # fmt: skip
        super().__init__(paths, session, time, labels, features, dense, weight, log1p)
        self.lists, self.missing = dict(lists or {}), ("", *missing)
        if unknown := [name for name in self.lists if name not in features]:
            raise ValueError(f"lists names {unknown[0]}, which is not among the features {', '.join(features)}")
        if wrong := [name for name, separator in self.lists.items() if not separator]:
            raise ValueError(f"lists.{wrong[0]} is empty; give the separator between ids, such as '|'")
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
            raise ValueError(f"delimiter must be one character, not a quote or line end, got {delimiter!r}")
        self._files = RecordFiles(self.paths, self.names, columns, delimiter)

    def read(self, begin: LogPosition) -> Iterator[ReadChunk]:
        for block in self._files.blocks(begin):
            rows = TextRows(block.rows, block.columns, self.lists, self.missing)
            yield rows.rows.read_chunk(self.chunk(rows), block.end, block.share)
