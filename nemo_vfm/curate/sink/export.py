"""Exports finished clip shards to `dataset/` in a sink's layout, and lists what it omits, and why."""

from pathlib import Path

from nemo_vfm.core.errors import NothingKept, UserError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.storage.uri import Place, place
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.examine.findings import fingerprint
from nemo_vfm.curate.output.write_outputs import finished, replace_folder, shards_digest
from nemo_vfm.curate.sink.sink_layout import Sink, Written
from nemo_vfm.data.shards.shard_files import ShardSet


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
        if (known := finished(marker, state)) is not None and folder.is_dir():
            return Outcome(_summary(known), {"clips": known["written"]}, did_nothing=True)
        marker.unlink(missing_ok=True)
        if isinstance(self.shards, Path) and self.shards.resolve() == folder.resolve():
            raise UserError(f"{folder} would be read and replaced at the same time; choose another run_dir")
        shards, found = ShardSet(self.shards), Written()

        def fill(partial: Path) -> None:
            nonlocal found
            found = self.sink.write(shards, partial, folder)

        replace_folder(folder, fill)
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
