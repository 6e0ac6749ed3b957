"""Measures how often drawn videos have the right colour, shape and direction, and finds their nearest clips."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_vfm.core import log
from nemo_vfm.core.bounds import MAX_SIDE_PX, require_between
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import read_json, write_json
from nemo_vfm.core.storage.uri import Place, local, place
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.video.decode import read_all
from nemo_vfm.metrics.shape_reader import COLOURS, DIRECTIONS, SHAPES, read
from nemo_vfm.metrics.video_quality import nearest, seam_ratio, thumbnail

Entry = Mapping[str, Any]
#: What is read from a sample, and among how many a guess would choose.
_WHAT = {"colour": len(COLOURS), "shape": len(SHAPES), "direction": len(DIRECTIONS)}


@makes("evaluation.json", "nearest.json")
class Evaluate:
    """Measures drawn videos from their pixels, and finds the training clip each looks most like.

    Args:
        samples: folder of a finished Sample step.
        baseline: folder of the same prompts drawn by an untrained model; None leaves the comparison out.
        block_px: side of the blocks that the codec cuts pictures into; None leaves their seams unmeasured.
        clips: curated clip shards, here or in an object store, that were trained on; None leaves the nearest clips out.
    """

    def __init__(
        self, *, samples: Path, baseline: Path | None = None, clips: Place | None = None, block_px: int | None = None
    ) -> None:
        if block_px is not None:
            require_between(2, MAX_SIDE_PX, block_px=block_px)
        self.block_px = block_px
        self.samples = local(samples, "samples")
        self.baseline = None if baseline is None else local(baseline, "baseline")
        self.clips = None if clips is None else place(clips)

    def run(self, run: Run) -> Outcome:
        """Measure and write."""
        run.folder.mkdir(parents=True, exist_ok=True)
        entries = _entries(self.samples)
        measured = self._measure(self.samples, entries)
        if self.baseline is not None:
            measured["untrained"] = self._measure(self.baseline, _entries(self.baseline))
        write_json(run.folder / "evaluation.json", measured)
        if self.clips is not None:
            write_json(run.folder / "nearest.json", self._nearest(entries, self.clips))
        return Outcome(_summary(measured), {k: v for k, v in measured.items() if isinstance(v, float | int)})

    def _measure(self, folder: Path, entries: Sequence[Entry]) -> dict[str, Any]:
        """Accuracies over the prompts that say what to expect, beside those of chance, and the seams of all."""
        videos = [read_all(folder / str(entry["file"])) for entry in entries]
        rows = []
        for entry, video in zip(entries, videos, strict=True):
            if asked := entry.get("attributes"):
                reading = read(video)
                found = {what: getattr(reading, what) for what in _WHAT}
                right = {f"{what}_right": found[what] == asked[what] for what in _WHAT}
                rows.append({"index": entry["index"], "prompt": entry["prompt"], **found, **right})
        measured: dict[str, Any] = {
            f"{what}_accuracy": sum(row[f"{what}_right"] for row in rows) / len(rows) for what in _WHAT if rows
        }
        if self.block_px is not None and videos:
            measured["seam_ratio"] = seam_ratio(videos, self.block_px)
        return {
            **measured, "num_prompts": len(rows), "num_samples": len(entries),
            "chance": {what: 1 / options for what, options in _WHAT.items()}, "per_prompt": rows,
        }  # fmt: skip

    def _nearest(self, entries: Sequence[Entry], clips: Place) -> list[dict[str, Any]]:
        shards = ShardSet(clips)
        known = [entry for entry in shards.entries if "mp4" in entry.members]
        vectors = [thumbnail(read_all(shards.read(entry, "mp4"))) for entry in log.track("training clips", known)]
        # Where curation left them, from the workflow's folder; clips in an object store have none beside them.
        beside = f"{clips.parent.name}/thumbnails" if isinstance(clips, Path) else None
        found = [nearest(thumbnail(read_all(self.samples / str(entry["file"]))), vectors) for entry in entries]
        return [
            {"index": entry["index"], "clip_id": known[best].key, "distance": distance,
             "caption": known[best].index.get("caption", ""),
             "thumbnail": None if beside is None else f"{beside}/{known[best].key}.jpg"}
            for entry, (best, distance) in zip(entries, found, strict=True)
        ]  # fmt: skip


def _entries(folder: Path) -> list[Entry]:
    path = folder / "samples.json"
    if not path.is_file():
        raise UserError(f"{path} is not there; expected the folder of a finished sampling step. Run that step first.")
    entries: list[Entry] = read_json(path)
    return entries


def _summary(measured: Mapping[str, Any]) -> str:
    if not measured["num_prompts"]:
        return "the prompts name no colour, shape and direction, so there is nothing to measure from pixels"
    untrained = measured.get("untrained", {})
    text = ", ".join(f"{what} {_count(measured, what)}" for what in _WHAT)
    if untrained.get("num_prompts"):
        text += f" (untrained {', '.join(_count(untrained, what) for what in _WHAT)})"
    return text


def _count(measured: Mapping[str, Any], what: str) -> str:
    num = measured["num_prompts"]
    return f"{round(measured[f'{what}_accuracy'] * num)}/{num}"
