"""Reads the texts of documents file by file, and counts by reason those that could not be read."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.text.document_lines import files_of, lines, portions

_MAX_BAD_IN_A_ROW = 16
_AT_ONCE = 256_000_000  # bytes of a span; only bounds how much of a file is listed at once


class Documents:
    """Texts of documents, file after file by name. `TokenizeText` reads the same files.

    Args:
        path: .jsonl (also .gz, .zst, .bz2) with an object a line, .parquet, .tar (samples of a WebDataset), or .txt,
            each file of which is one document; or a folder of such files, at any depth.
        column: where the text is, in JSON and Parquet.
        max_document_mb: a longer document is not read, in MB (10^6 bytes).
    """

    def __init__(self, *, path: Path, column: str = "text", max_document_mb: float = 64.0) -> None:
        if not column or max_document_mb <= 0:
            raise ValueError(
                f"column ({column!r}) must name the text column, max_document_mb ({max_document_mb}) must be above 0"
            )
        self.path, self.column = local(path, "the path of documents"), column
        self.max_document_mb = max_document_mb

    def texts(self, skipped: Counter[str]) -> Iterator[str]:
        """Those that have a letter at all.

        Args:
            skipped: how many had none, or could not be read, is added here, by reason.

        Raises:
            UserError: there are none, a file or many documents in a row have no such column, or it changes meanwhile.
            DataError: many documents in a row are bad, or a Parquet file cannot be read.
        """
        folder, files = files_of(self.path)
        for span in (span for portion in portions(folder, files, _AT_ONCE) for span in portion.spans):
            bad = 0
            for line in lines(folder, span, column=self.column, max_bytes=int(self.max_document_mb * 1e6)):
                if line.fault is not None:
                    bad += 1
                    skipped[line.fault] += 1
                    if bad == _MAX_BAD_IN_A_ROW:
                        said = f"{bad} documents in a row up to number {line.where} of {folder / span.file} are bad: "
                        if line.columns:
                            raise UserError(f"{said}{line.error()}. Set `column` of documents to the one with the text")
                        raise DataError(f"{said}{line.fault}; repair the file, or leave it out")
                elif line.text is not None and line.text.strip():
                    bad = 0
                    yield line.text
                else:
                    skipped["empty"] += 1

    def state(self) -> list[list[Json]]:
        """Name and size of each file: changes when files come, go or grow."""
        folder, files = files_of(self.path)
        return [[name, (folder / name).stat().st_size] for name, _ in files]
