"""Reads values from the files of a run folder; a file that cannot be read becomes a note, never an exception."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Self

from nemo_vfm.core.storage.files import open_regular, read_bytes, real_path
from nemo_vfm.core.types.job import LAUNCH, MANIFEST, PARTS
from nemo_vfm.report.parts.plain_text import as_mapping, number

MAX_FILE_BYTES = 64 << 20
MAX_ROWS = 200_000
AXES = ("step", "time_s")
#: Metrics of rankings, each with the title of its chart.
RANKING = {"val_auc": "AUC of held-out samples", "val_normalised_entropy": "Normalised entropy of held-out samples",
           "val_calibration": "Calibration of held-out samples"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunStep:
    """One step of the run: its name (empty for a run that is a single job) and its folder."""

    name: str
    folder: Path


@dataclass(slots=True)
class RunFolder:
    """What the sections read from. Nothing outside `root` is ever opened, whatever a file or a link says."""

    root: Path  #: the run folder, resolved
    steps: list[RunStep]  #: the root itself, then its sub-folders in the order of the recipe's steps
    _notes: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Find the steps of a run folder.

        Raises:
            NotADirectoryError: there is no such folder.
        """
        root = real_path(folder)
        if not root.is_dir():
            raise NotADirectoryError(f"{folder} is not a folder; give the run_dir of a run")
        run = cls(root, [RunStep("", root)])
        names = [path.name for path in root.iterdir() if path.is_dir() and path.name not in (LAUNCH, PARTS)]
        found = sorted(name for name in names if not name.startswith((".", "_")))
        planned = run.planned_steps()
        found.sort(key=lambda name: planned.index(name) if name in planned else len(planned))
        run.steps += [RunStep(name, root / name) for name in found]
        return run

    def planned_steps(self) -> list[str]:
        """The names of the workflow's steps, in order."""
        steps = as_mapping(self.read_json(self.root / MANIFEST)).get("steps")
        return [str(name) for name in steps] if isinstance(steps, list) else []

    def steps_with(self, name: str) -> list[RunStep]:
        """The steps whose folder holds the file `name`."""
        return [step for step in self.steps if (step.folder / name).is_file()]

    def rules(self, step: RunStep) -> dict[str, Mapping[str, Any]]:
        """A curation step's rules by name, in the order in which they were applied."""
        found = as_mapping(self.read_json(step.folder / "rules.json"))
        return {str(name): as_mapping(rule) for name, rule in found.items()}

    def label(self, path: Path) -> str:
        """A path as the reader knows it: from the run folder on."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else path.name

    def note(self, text: str) -> None:
        """Say something under the section that is being made."""
        if text not in self._notes:
            self._notes.append(text)

    def take_notes(self) -> tuple[str, ...]:
        """The notes since the last call."""
        notes, self._notes = tuple(self._notes), []
        return notes

    def read_bytes(self, path: Path, *, span: tuple[int, int] | None = None) -> bytes | None:
        """A file's bytes, or a `span` of it (offset, size); None, with a note, if missing, too large or outside."""
        try:
            if not real_path(path).is_relative_to(self.root):
                self.note(f"{path.name} is outside the run folder and was not read.")
                return None
            if span is not None:
                with open_regular(path) as file:
                    file.seek(span[0])
                    return file.read(span[1])
            if (size := path.stat().st_size) > MAX_FILE_BYTES:
                limit = f"the limit is {MAX_FILE_BYTES / 1e6:,.1f} MB"
                self.note(f"{self.label(path)} was not read: {size / 1e6:,.1f} MB, and {limit}.")
                return None
            return read_bytes(path, MAX_FILE_BYTES)
        except (OSError, ValueError) as error:
            self.note(f"{self.label(path)} could not be read: {type(error).__name__}.")
            return None

    def read_text(self, name: str) -> str:
        """A text file of the root, or the empty text."""
        data = self.read_bytes(self.root / name) if (self.root / name).is_file() else None
        return (data or b"").decode("utf-8", "replace")

    def read_json(self, path: Path) -> Any:
        """The value of a JSON file, or None where there is none to be had (with a note if the file is there)."""
        if not path.is_file() or (data := self.read_bytes(path)) is None:
            return None
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            self.note(f"{self.label(path)} is not valid JSON and was ignored: {error}.")
            return None

    def read_lines(self, path: Path) -> list[Mapping[str, Any]]:
        """The objects of a file with one JSON object a line; lines that are not are counted in a note."""
        lines = (self.read_bytes(path) or b"").splitlines()
        objects: list[Mapping[str, Any]] = []
        bad = []
        for place, line in enumerate(lines, start=1):
            try:
                value = json.loads(line)
                if not isinstance(value, dict):
                    raise ValueError("not an object")
                objects.append(value)
            except (ValueError, RecursionError):
                bad.append(place)
        if bad:
            shown = ", ".join(map(str, bad[:5])) + (" …" if len(bad) > 5 else "")
            self.note(f"{len(bad)} of {len(lines)} lines of {self.label(path)} could not be read: {shown}.")
        return objects

    def read_rows(self, path: Path) -> list[dict[str, Any]]:
        """The rows of a parquet file; none, with a note, where it is damaged or larger than a page can show."""
        import pyarrow.parquet as parquet

        if not real_path(path).is_relative_to(self.root):
            self.note(f"{path.name} is outside the run folder and was not read.")
            return []
        try:
            file = parquet.ParquetFile(path)
            total = file.metadata.num_rows
            read = (row for batch in file.iter_batches(batch_size=10_000) for row in batch.to_pylist())
            rows = list(islice(read, MAX_ROWS))
        except Exception as error:  # pyarrow raises its own, OSError, ValueError and UnicodeDecodeError for damage
            self.note(f"{self.label(path)} could not be read: {type(error).__name__}.")
            return []
        if total > len(rows):
            self.note(f"Only the first {len(rows):,} of {total:,} rows of {self.label(path)} are shown.")
        return rows

    def each(self, name: str) -> Iterator[tuple[RunStep, Mapping[str, Any]]]:
        """Every step that has the JSON file `name`, with the mapping in it."""
        for step in self.steps_with(name):
            value = self.read_json(step.folder / name)
            if isinstance(value, Mapping):
                yield step, as_mapping(value)
            elif value is not None:
                self.note(f"{self.label(step.folder / name)} is not a mapping and was ignored.")


def columns(records: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[tuple[float, float]]], int]:
    """The points of each key by rising step. A resumed run logs some steps twice: the later line counts."""
    values: dict[str, dict[float, float]] = {}
    not_finite = 0
    for record in records:
        if (step := number(record.get("step"))) is None:
            continue
        for key in record.keys() - set(AXES):
            if (value := number(record[key])) is not None:
                values.setdefault(str(key), {})[step] = value
            elif isinstance(record[key], float):
                not_finite += 1
    return {key: sorted(points.items()) for key, points in values.items()}, not_finite
