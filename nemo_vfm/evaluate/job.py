# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Drawn videos in; evaluation.json with how often colour and direction are as asked, and nearest.json, out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_vfm.core import log
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.files import read_json, write_json
from nemo_vfm.core.place import Place, local, place
from nemo_vfm.core.types import Outcome, Run
from nemo_vfm.data.decode import read_all
from nemo_vfm.data.shards import ShardSet
from nemo_vfm.metrics.nearest import nearest, thumbnail
from nemo_vfm.metrics.shapes import Reading, read

Entry = Mapping[str, Any]


class Evaluate:
    """Measures drawn videos from their pixels, and finds the training clip each looks most like.

    Args:
        samples: folder of a finished Sample step.
        baseline: folder of the same prompts drawn by an untrained model; None leaves the comparison out.
        clips: curated clip shards, here or in an object store, that were trained on; None leaves the nearest clips out.
    """

    def __init__(self, *, samples: Path, baseline: Path | None = None, clips: Place | None = None) -> None:
        self.samples = local(samples, "samples")
        self.baseline = None if baseline is None else local(baseline, "baseline")
        self.clips = None if clips is None else place(clips)

    def run(self, run: Run) -> Outcome:
        """Measure and write."""
        run.folder.mkdir(parents=True, exist_ok=True)
        entries = _entries(self.samples)
        measured = _measure(self.samples, entries)
        if self.baseline is not None:
            measured["untrained"] = _measure(self.baseline, _entries(self.baseline))
        write_json(run.folder / "evaluation.json", measured)
        if self.clips is not None:
            write_json(run.folder / "nearest.json", self._nearest(entries, self.clips))
        return Outcome(_summary(measured), {k: v for k, v in measured.items() if isinstance(v, float | int)})

    def _nearest(self, entries: Sequence[Entry], clips: Place) -> list[dict[str, Any]]:
        shards = ShardSet(clips)
        known = [entry for entry in shards.entries if "mp4" in entry.members]
        vectors = [thumbnail(read_all(shards.read(entry, "mp4"))) for entry in log.track("training clips", known)]
        found = [nearest(thumbnail(read_all(self.samples / str(entry["file"]))), vectors) for entry in entries]
        return [
            {"index": entry["index"], "clip_id": known[best].key, "distance": distance,
             "caption": known[best].index.get("caption", ""),
             "thumbnail": _thumbnail(clips, known[best].key)}
            for entry, (best, distance) in zip(entries, found, strict=True)
        ]  # fmt: skip


def _thumbnail(clips: Place, key: str) -> str | None:
    """Where curation left it, from the workflow's folder; clips in an object store have none beside them."""
    return f"{clips.parent.name}/thumbnails/{key}.jpg" if isinstance(clips, Path) else None


def _entries(folder: Path) -> list[Entry]:
    path = folder / "samples.json"
    if not path.is_file():
        raise UserError(f"{path} is not there; expected the folder of a finished sampling step. Run that step first.")
    entries: list[Entry] = read_json(path)
    return entries


def _measure(folder: Path, entries: Sequence[Entry]) -> dict[str, Any]:
    """Accuracies over the prompts that say what to expect; without such prompts there is nothing to measure."""
    asked = [entry for entry in entries if entry.get("attributes")]
    readings = [read(read_all(folder / str(entry["file"]))) for entry in asked]
    rows = [_row(entry, reading) for entry, reading in zip(asked, readings, strict=True)]
    accuracies = {
        f"{what}_accuracy": sum(row[f"{what}_right"] for row in rows) / len(rows)
        for what in ("colour", "direction") if rows
    }  # fmt: skip
    return {**accuracies, "num_prompts": len(rows), "num_samples": len(entries), "per_prompt": rows}


def _row(entry: Entry, reading: Reading) -> dict[str, Any]:
    asked = entry["attributes"]
    return {
        "index": entry["index"], "prompt": entry["prompt"],
        "colour": reading.colour, "colour_right": reading.colour == asked["colour"],
        "direction": reading.direction, "direction_right": reading.direction == asked["direction"],
    }  # fmt: skip


def _summary(measured: Mapping[str, Any]) -> str:
    if not measured["num_prompts"]:
        return "the prompts name no colour and direction, so there is nothing to measure from pixels"
    num = measured["num_prompts"]
    colour, direction = (round(measured[f"{what}_accuracy"] * num) for what in ("colour", "direction"))
    text = f"of {num} prompts, {colour} show the colour asked for and {direction} the direction"
    untrained = measured.get("untrained", {})
    if untrained.get("num_prompts"):
        text += f" (untrained: {untrained['colour_accuracy']:.0%} and {untrained['direction_accuracy']:.0%})"
    return text
