"""Defines the interface of sinks, and what all of them read from a clip."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from nemo_vfm.core.errors import UserError
from nemo_vfm.data.shards.shard_files import Entry, ShardSet

_WHOLE = ("width", "height", "num_frames")


@dataclass(slots=True)
class Written:
    """What a sink did."""

    written: int = 0  #: how many clips are in the layout
    left_out: Counter[str] = field(default_factory=Counter)  #: reason -> how many clips are not
    #: sentences for the user about what the layout still needs, or what its readers will do with it
    notes: list[str] = field(default_factory=list)


@runtime_checkable
class Sink(Protocol):
    """Writes clips in a layout of somebody else's."""

    def write(self, shards: ShardSet, folder: Path, at: Path) -> Written:
        """Fill an empty folder, which will lie `at` another place once it is full."""
        ...


def clips(shards: ShardSet, written: Written) -> Iterator[Entry]:
    """The clips that have a film, and numbers that can be; others are left out."""
    for entry in shards.entries:
        if "mp4" not in entry.members:
            written.left_out["no mp4 in the shard"] += 1
        elif "num_frames" not in entry.index or "fps" not in entry.index:
            raise UserError(f"{shards.folder} has no index with the clips' frame counts, so it is not from a curation")
        else:  # sizes and rate must be numbers above 0: shards may be a stranger's
            whole = all(type(number := entry.index.get(name)) is int and number > 0 for name in _WHOLE)
            fps = entry.index["fps"]
            if whole and type(fps) in (int, float) and 0 < fps < 1e9:
                yield entry
            else:
                written.left_out["a damaged index"] += 1


def caption_of(entry: Entry) -> str:
    """The clip's caption; empty if it has none."""
    return str(entry.index.get("caption", ""))


def note_captions(written: Written, missing: int, consequence: str) -> None:
    """Note how many clips have no caption, and how the layout's readers treat them."""
    if missing:
        written.notes.append(f"{missing} of {written.written} clips have no caption: {consequence}")
