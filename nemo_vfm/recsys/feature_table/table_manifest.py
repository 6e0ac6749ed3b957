"""Reads and checks `manifest.json` of a feature table, which is written as its last file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import read_json, sha256_file
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.feature_table.table_schema import TableSchema

FORMAT = "nemo_vfm.feature_table/1"
NAME = "manifest.json"


class PartFile(NamedTuple):
    """What a file must be."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Part:
    """A file of samples, and a file of unique rows for each group."""

    name: str  #: of its file of samples, and of those in the folders of groups
    row_groups: tuple[int, ...]  #: how many samples each row group has
    files: Mapping[str, PartFile]  #: by path below the table's folder


class ValueCounts(NamedTuple):
    """How many values of a feature all samples have together, and how many are stored."""

    plain: int
    stored: int


@dataclass(frozen=True, slots=True)
class TableManifest:
    """What a table holds."""

    schema: TableSchema  #: its columns
    clustered: bool  #: whether the samples of a session follow each other, ordered by time
    weighted: tuple[str, ...]  #: features that have a weight a value
    sessions: int  #: how many runs of one session there are
    values: Mapping[str, ValueCounts]  #: of each feature
    unique_rows: Mapping[str, int]  #: of each group
    #: of the files of samples (under "") and of each group, by the path of a column
    encodings: Mapping[str, Mapping[str, str]]
    #: compressed, of each column of the files of samples (under "") and of each group; empty in a table that was
    #: written before they were counted
    column_bytes: Mapping[str, Mapping[str, int]]
    parts: tuple[Part, ...]  #: in the order of the samples
    ids: str = ""  #: a hash of which ids have which rows; empty where nobody said. Tables of two are not of one model.
    #: of features, how many rows the embedding table has in which its ids are rows, where that is known
    table_rows: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Samples of all parts."""
        return sum(sum(part.row_groups) for part in self.parts)

    def json(self) -> Json:
        """As it is written."""
        values = {name: counts._asdict() for name, counts in self.values.items()}
        files = [{path: file._asdict() for path, file in part.files.items()} for part in self.parts]
        parts = [
            {"name": part.name, "row_groups": list(part.row_groups), "files": its}
            for part, its in zip(self.parts, files, strict=True)
        ]
        return {
            "format": FORMAT, "rows": self.num_rows, "sessions": self.sessions, "clustered": self.clustered,
            "schema": asdict(self.schema), "weighted": list(self.weighted), "values": values,
            "unique_rows": dict(self.unique_rows), "encodings": dict(self.encodings),
            "column_bytes": dict(self.column_bytes), "parts": parts, **({"ids": self.ids} if self.ids else {}),
            **({"table_rows": dict(self.table_rows)} if self.table_rows else {}),
        }  # fmt: skip


def read_manifest(folder: Path, name: str = NAME) -> TableManifest:
    """What the folder says of itself.

    Raises:
        UserError: there is no such folder, or it was not finished.
        DataError: its manifest is damaged or of another format.
    """
    path = folder / name
    if not path.is_file():
        raise UserError(
            f"{folder} holds no {name}, so it is not a finished feature table; run the job that "
            "writes it again (docs/how-to/recommenders/feature_table.md)"
        )
    try:
        content = read_json(path)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            found = content.get("format") if isinstance(content, dict) else type(content).__name__
            raise ValueError(f"its format is {found!r}, expected {FORMAT!r}")
        parts = []
        for part in content["parts"]:
            files = {path: PartFile(int(file["bytes"]), str(file["sha256"])) for path, file in part["files"].items()}
            if wrong := [path for path in files if Path(path).is_absolute() or ".." in Path(path).parts]:
                raise ValueError(f"{wrong[0]!r} is outside of the table's folder")
            if not all(type(rows) is int and rows > 0 for rows in part["row_groups"]):
                raise ValueError(f"a row group of {part['name']} has no positive number of rows")
            parts.append(Part(str(part["name"]), tuple(part["row_groups"]), files))
        manifest = TableManifest(
            TableSchema(**content["schema"]), content["clustered"] is True, tuple(content["weighted"]),
            int(content["sessions"]), {name: ValueCounts(**counts) for name, counts in content["values"].items()},
            dict(content["unique_rows"]), dict(content["encodings"]), dict(content.get("column_bytes", {})),
            tuple(parts), str(content.get("ids", "")),
            {str(name): int(rows) for name, rows in content.get("table_rows", {}).items()},
        )  # fmt: skip
        if manifest.num_rows != content["rows"]:
            raise ValueError(f"its parts have {manifest.num_rows:,} rows, but it says {content['rows']:,}")
        return manifest
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}: {error}); write the table again") from error


def require_files(folder: Path, manifest: TableManifest, *, hashes: bool) -> None:
    """Check that all files are there and of the right size, and with `hashes` each byte of them.

    Raises:
        DataError: one is not.
    """
    for path, expected in ((path, file) for part in manifest.parts for path, file in part.files.items()):
        file = folder / path
        size = file.stat().st_size if file.is_file() else 0
        if size != expected.bytes:
            raise DataError(
                f"{file} has {size:,} bytes, but the manifest says {expected.bytes:,}. Was it truncated while copying?"
            )
        if hashes and sha256_file(file) != expected.sha256:
            raise DataError(f"{file} is not the file that was written: its sha256 differs. Copy or write it again.")
