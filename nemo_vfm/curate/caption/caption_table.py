"""Reads captions from a table that names videos, beside or instead of files beside them."""

import posixpath
from functools import cached_property
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.storage.uri import local
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.data.sources.table_file import check_suffix, rows_of


class CaptionTable:
    """Takes captions from a CSV, JSON Lines or Parquet file, a row a video.

    A row's path is relative to `root`, or the file's name as the ledger has it: relative to the folder of the source.
    The caption applies to every clip of the video. Of a table of spans, `source=table` reads captions itself.

    Args:
        path: the table; its ending says whether it is .csv, .jsonl or .parquet.
        video: name of the column with the files' paths.
        caption: name of the column with the captions.
        root: folder that paths are relative to; None is the table's own.
    """

    def __init__(self, *, path: Path, video: str = "video", caption: str = "caption", root: Path | None = None) -> None:
        check_suffix(path)
        self.path = local(path, "a table of captions")
        self.root = self.path.parent if root is None else local(root, "the folder of a table's videos")
        self.video, self.column = video, caption

    def ready(self) -> None:
        """Read the table before anything is encoded."""
        _ = self._captions

    def caption(self, record: ClipRecord) -> tuple[str, str] | None:
        """The text and `table`, or None where no row names the video."""
        names = [*(str(path.resolve()) for path in record.paths), record.source]
        text = next((text for name in names if (text := self._captions.get(name))), None)
        return None if text is None else (text, "table")

    @cached_property
    def _captions(self) -> dict[str, str]:
        """By path, and by the name that a row gives."""
        found: dict[str, tuple[str, str]] = {}
        root = self.root.resolve()
        for row in rows_of(self.path, [self.video, self.column]):
            names = (str(row.path(self.video, root)), posixpath.normpath(str(row.values[self.video])))
            for name in names:
                text, before = found.setdefault(name, (row.text(self.column), row.place))
                if text != row.text(self.column):
                    raise DataError(f"{row.place} and {before} give one video different captions; keep one of them. "
                                    "If each is for a span, use source=table")  # fmt: skip
        return {name: text for name, (text, _) in found.items()}
