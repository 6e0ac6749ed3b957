"""Finds where a clip's bytes lie, what its record says, and what was encoded of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.shards.shard_files import Entry, ShardSet
from nemo_vfm.explain.clip.curation_folder import Curation, plain, read_plain


@dataclass(slots=True)
class Bytes:
    """A sample of shards.

    Args:
        folder: of the shards.
        shard: the tar's name.
        key: the sample's.
        members: extension -> (offset in the tar, bytes).
        index: what the index says of it.
    """

    folder: str
    shard: str
    key: str
    members: dict[str, tuple[int, int]]
    index: Json


@dataclass(slots=True)
class Encoding:
    """What one encode step made of the clip.

    Args:
        step: its folder.
        samples: windows of the clip, each with its latents; none where the step left it out.
        codec: what encoded it.
        left_out: reason -> clips that this step left out for it, where it made nothing of the clip.
    """

    step: str
    samples: list[Bytes] = field(default_factory=list)
    codec: str = ""
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Opened:
    """The shards that a clip lies in, for reading what is in them.

    Args:
        shards: the folder.
        entry: the sample.
    """

    shards: ShardSet
    entry: Entry

    def resolved(self) -> Bytes:
        """As it is printed."""
        entry = self.entry
        return Bytes(str(self.shards.folder), entry.shard, entry.key, dict(entry.members), dict(entry.index))

    def record(self) -> Json:
        """The json member; empty where there is none, or it is damaged."""
        if "json" not in self.entry.members:
            return {}
        try:
            return plain(self.shards.read(self.entry, "json"))
        except DataError:
            return {}


def lies_in(curation: Curation, clip: str) -> Opened | None:
    """The clip's sample in the shards beside the table; None where it has no media."""
    found = _opened(curation.folder / "shards", lambda entry: entry.key == clip)
    return found[0] if found else None


def encodings(curation: Curation, clip: str) -> tuple[list[Encoding], list[Opened]]:
    """What each encode step of the run made of the clip, and all of its latents."""
    resolved, opened = [], []
    for folder in curation.encodings():
        report = read_plain(folder / "encode.json")
        found = _opened(folder / "shards", lambda entry: entry.index.get("clip") == clip)
        opened += found
        left = {} if found else _reasons(report, "unbinned") | _reasons(report, "failed")
        resolved.append(Encoding(str(folder), [one.resolved() for one in found], str(report.get("codec", "")), left))
    return resolved, opened


def _opened(folder: Path, wanted: Callable[[Entry], bool]) -> list[Opened]:
    if not (folder / "shards.json").is_file():
        return []
    try:
        shards = ShardSet(folder)
    except (DataError, UserError):
        return []
    return [Opened(shards, entry) for entry in shards.entries if wanted(entry)]


def _reasons(report: Json, name: str) -> dict[str, int]:
    found = report.get(name)
    return {str(why): int(count) for why, count in found.items()} if isinstance(found, dict) else {}
