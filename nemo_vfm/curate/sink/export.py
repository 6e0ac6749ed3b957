"""Exports finished clip shards to `dataset/` in a sink's layout, and lists what it omits, and why."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from nemo_vfm.core.errors import NothingKept, UserError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.storage.uri import Place, place
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.examine.findings import fingerprint
from nemo_vfm.curate.output.write_outputs import read_marker, replaced_folder, shards_digest
from nemo_vfm.data.shards.shard_files import Entry, ShardSet

_WHOLE = ("width", "height", "num_frames")


@dataclass(slots=True)
class ExportResult:
    """What a sink did."""

    written: int = 0  #: how many clips are in the layout
    left_out: Counter[str] = field(default_factory=Counter)  #: reason -> how many clips are not
    #: sentences for the user about what the layout still needs, or what its readers will do with it
    notes: list[str] = field(default_factory=list)


@runtime_checkable
class Sink(Protocol):
    """Writes clips in a layout of somebody else's."""

    def write(self, shards: ShardSet, folder: Path, at: Path) -> ExportResult:
        """Fill an empty folder, which will lie `at` another place once it is full."""
        ...


def clips(shards: ShardSet, written: ExportResult) -> Iterator[Entry]:
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


def note_captions(written: ExportResult, missing: int, consequence: str) -> None:
    """Note how many clips have no caption, and how the layout's readers treat them."""
    if missing:
        written.notes.append(f"{missing} of {written.written} clips have no caption: {consequence}")


@makes("dataset", "export.json")
class Export:
    """Writes curated clips in the layout of another framework, into `dataset/` of the run folder.

    Every clip is either written or left out for a reason that is counted in export.json. The folder appears whole.

    Args:
        shards: folder of clip shards, here or in an object store.
        sink: the layout.
    """

    def __init__(self, *, shards: Place, sink: Sink) -> None:
        self.shards, self.sink = place(shards), sink

    def run(self, run: Run) -> Outcome:
        """Do the work; a second run does nothing.

        Raises:
            UserError: there are no finished clip shards.
            NothingKept: no clip fits the layout.
        """
        marker, folder = run.folder / "export.json", run.folder / "dataset"
        # Some layouts hold the path at which they lie.
        state = fingerprint(self.sink, shards_digest(self.shards), str(run.folder.absolute()))
        if (known := read_marker(marker, state)) is not None and folder.is_dir():
            return Outcome(_summary(known), {"clips": known["written"]}, did_nothing=True)
        marker.unlink(missing_ok=True)
        if isinstance(self.shards, Path) and self.shards.resolve() == folder.resolve():
            raise UserError(f"{folder} would be read and replaced at the same time; choose another run_dir")
        shards = ShardSet(self.shards)
        with replaced_folder(folder) as partial:
            found = self.sink.write(shards, partial, folder)
        if repeated := sum(entry.index.get("weight", 1) != 1 for entry in shards.entries):
            found.notes.append(
                f"{repeated} clips have a weight (how often to train on them), which only our own loader uses"
            )
        num_clips = len(shards)
        assert num_clips == found.written + found.left_out.total(), "a clip is neither written nor left out"
        report = {
            "clips": num_clips, "written": found.written, "left_out": dict(sorted(found.left_out.items())),
            "notes": found.notes, "made_of": state,
        }  # fmt: skip
        for note in found.notes:
            info(note)
        for reason, number in found.left_out.items():
            warn(f"{number} of {len(shards)} clips are left out: {reason}")
        if not found.written:
            raise NothingKept(f"none of {len(shards)} clips fits the layout: {dict(found.left_out)}")
        write_json(marker, report)
        return Outcome(_summary(report), {"clips": found.written})


def _summary(report: dict[str, Json]) -> str:
    left_out = report["clips"] - report["written"]
    return f"{report['written']} of {report['clips']} clips in dataset/" + (
        f", {left_out} left out" if left_out else ""
    )
