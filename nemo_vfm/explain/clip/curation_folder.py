"""Opens the table of a curation and the small files beside it in a run folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import read_bytes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.decide.score_table import Table

_MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Curation:
    """A finished curation."""

    folder: Path  #: where scores.parquet lies
    table: Table  #: what was measured
    others: dict[str, list[object]]  #: the columns of scores.parquet that are no scores, as lists

    def texts(self, name: str) -> list[str]:
        """A column that no clip lacks."""
        return cast(list[str], self.others[name])

    def text(self, name: str, place: int) -> str | None:
        """A column of one clip, where it has one."""
        value = self.others[name][place]
        return None if value is None else str(value)

    def span(self, place: int) -> tuple[int, int]:
        """First frame and the one after the last."""
        return cast(int, self.others["first_frame"][place]), cast(int, self.others["last_frame"][place])

    def number(self, name: str, place: int) -> float | None:
        """A number of one clip; None where it has none."""
        value = float(self.table.numbers(name)[place])
        return value if value == value else None

    def read(self, name: str) -> Json:
        """A JSON file beside the table; an empty mapping where it is absent or damaged."""
        return read_plain(self.folder / name)


def names_run(word: str, clip: str | None) -> bool:
    """Whether a word, with a clip behind it or none, is meant as a run folder: any folder is, where a clip is named."""
    if not Path(word).is_dir():
        return False
    return clip is not None or (Path(word) / "scores.parquet").is_file() or any(Path(word).glob("*/scores.parquet"))


def curation_folder(run: Path) -> Path | None:
    """The folder of a run's only curation; None where there is none."""
    if (run / "scores.parquet").is_file():
        return run
    found = sorted(path.parent for path in run.glob("*/scores.parquet"))
    if len(found) > 1:
        listed = ", ".join(map(str, found[:8])) + (" ..." if len(found) > 8 else "")
        raise UserError(f"{run} decided on clips in several steps; name one: {listed}")
    return found[0] if found else None


def read_plain(path: Path, kind: type[dict[str, Json]] | type[list[Json]] = dict) -> Json:
    """The mapping, or the list, in a JSON file; an empty one where it is absent, damaged or something else."""
    try:
        return parse_json(read_bytes(path, _MAX_BYTES), kind)
    except OSError:
        return kind()


def parse_json(data: bytes, kind: type[dict[str, Json]] | type[list[Json]] = dict) -> Json:
    """What JSON says, NaN and infinity as null; an empty one where it is damaged or of another kind."""
    try:
        value = json.loads(data, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return kind()
    return value if isinstance(value, kind) else kind()
