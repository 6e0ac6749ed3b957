"""Caches findings about files under what they depend on, so that only a changed stage is measured again.

A file's shots are stored under the fingerprint of the splitter, each stage's numbers under that of splitter and
stage.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Protocol, runtime_checkable

from nemo_vfm.core.log import warn
from nemo_vfm.core.storage.files import read_json, sha256_text, write_json
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.examine.examine_file import round_scores
from nemo_vfm.curate.examine.sandbox import ChildReply
from nemo_vfm.curate.record.ledger import ClipRecord, FileRecord
from nemo_vfm.curate.record.stage import FileScore, Splitter, Stage
from nemo_vfm.data.shards.clip_id import Clip
from nemo_vfm.data.video.codecs import Decoding
from nemo_vfm.restore.letterbox import Picture, PixelBox, agreed_boxes

#: Raised when stages see other frames, or findings are stored in another form: findings under another number are not
#: read. A change in one stage or splitter has a number of its own, the `results_revision` of its class.
FRAMES = 8


@runtime_checkable
class HasFingerprint(Protocol):
    """A part whose settings do not say everything: the bytes of its weights matter, not their path."""

    def fingerprint(self) -> str:
        """Changes whenever the same input would give another result."""
        ...


def settings(value: object) -> Json:
    """A component's class and constructor arguments, as plain JSON values, all the way down.

    A class whose results have changed has the attribute `results_revision`, a number above 1.
    """
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): settings(value[key]) for key in value}
    if isinstance(value, list | tuple):
        return [settings(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    revision = getattr(type(value), "results_revision", 1)
    name: dict[str, Json] = {"class": f"{type(value).__module__}.{type(value).__qualname__}"}
    if revision != 1:
        name["results_revision"] = revision
    if isinstance(value, HasFingerprint):
        return {**name, "fingerprint": value.fingerprint()}
    slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
    arguments = vars(value) if hasattr(value, "__dict__") else {slot: getattr(value, slot) for slot in slots}
    # Names that begin with an underscore hold what a component derived from its settings, or loaded.
    return name | {key: settings(arguments[key]) for key in sorted(arguments) if not key.startswith("_")}


def fingerprint(*parts: object) -> str:
    """Changes whenever a setting of any part changes."""
    return sha256_text(json.dumps([settings(part) for part in parts], sort_keys=True))[:16]


def in_names(decode: str) -> tuple[str, ...]:
    """What the place of decoding adds to fingerprints: nothing for the CPU, whose pixels are the same everywhere."""
    return () if decode == "cpu" else (decode,)


@dataclass(frozen=True, slots=True)
class Cache:
    """Stores one JSON file per key. A damaged entry counts as absent."""

    _folder: Path  #: its name is the fingerprint of everything that an entry depends on besides its key

    def get(self, key: str) -> Json:
        """What was put, or None."""
        try:
            entry = read_json(self._folder / f"{key}.json")
        except (OSError, ValueError, RecursionError):
            return None
        return entry["value"] if isinstance(entry, dict) and entry.get("key") == key else None

    def put(self, key: str, value: Json) -> None:
        """Store it, whole or not at all."""
        write_json(self._folder / f"{key}.json", {"key": key, "value": value})


@dataclass(frozen=True, slots=True)
class MissingFindings:
    """What has yet to be found out about a file."""

    spans: list[list[int]] | None  #: its shots, if they are known
    stages: list[str]  #: names of the stages that have not seen it
    nothing: bool  #: whether there is nothing to do


class Findings:
    """The stored findings of one curation.

    Args:
        thumbnails: folder of the clips' pictures; a file without them is examined again.
        side_px: the size of the frames that stages see.
    """

    def __init__(
        self,
        folder: Path,
        thumbnails: Path,
        splitter: Splitter,
        side_px: int,
        stages: Mapping[str, Stage],
        decode: Decoding = "cpu",
    ) -> None:
        base = [FRAMES, splitter, side_px, *in_names(decode)]
        self._thumbnails = thumbnails
        self._shots = Cache(folder / fingerprint("shots", *base))
        self._stages = {name: Cache(folder / fingerprint(*base, stage)) for name, stage in stages.items()}
        self._of_files = {name: stage for name, stage in stages.items() if isinstance(stage, FileScore)}

    def missing(self, file: FileRecord) -> MissingFindings:
        """What an examination of the file has to find out."""
        key = file.findings_key
        shots = self._shots.get(key)
        if shots is None:
            return MissingFindings(None, list(self._stages), nothing=False)
        absent = []
        for name, cache in self._stages.items():
            known = cache.get(key)
            if not isinstance(known, list) or len(known) != len(shots["clips"]):
                absent.append(name)
        spans = [clip["span"] for clip in shots["clips"]]
        ids = (Clip(file.source_id, first, last, 0, 0, Fraction(1)).id for first, last in spans)
        seen = all((self._thumbnails / f"{clip_id}.jpg").is_file() for clip_id in ids)
        return MissingFindings(spans, absent, nothing=not absent and (seen or not spans))

    def put(self, file: FileRecord, missing: MissingFindings, replies: Sequence[ChildReply]) -> str | None:
        """Store what an examination found; returns a sentence if it contradicts earlier findings."""
        *clips, end = (reply.fact for reply in replies)
        key = file.findings_key
        if missing.spans is not None and [clip["span"] for clip in clips] != missing.spans:
            return "it no longer decodes as far as before"
        for name in missing.stages:
            self._stages[name].put(key, [clip["found"][name] for clip in clips])
        if missing.spans is None:
            names = ("span", "pts", "from_us", "us", "fps", "picture", "size")
            shots = [{name: clip[name] for name in names if name in clip} for clip in clips]
            self._shots.put(key, {"clips": shots, "end": end["end"], "rows": end.get("rows")})
        return None

    def fill(self, file: FileRecord, paths: tuple[Path, ...]) -> None:
        """Set the clips of a file that is fully examined, and the time between them.

        A part that could not be read becomes a failed clip. All is read from disk, so that a later run decides on the
        very same values as the run that measured them.
        """
        shots = self._shots.get(file.findings_key)
        clips = shots["clips"]
        facts = shots.get("rows")  # absent from findings older than tables
        apart = pairwise(clips) if facts is None else ()  # with a table, only its spans count
        between = [(a["span"][1] < b["span"][0], b["from_us"] - a["from_us"] - a["us"]) for a, b in apart]
        file.trimmed_us = sum(us for has_frames, us in between if has_frames)
        file.hole_us = sum(us for has_frames, us in between if not has_frames)
        file.clips = records = [_record(file, clip, paths) for clip in clips]
        for name, cache in self._stages.items():
            findings = cache.get(file.findings_key)
            for record, found in zip(records, findings, strict=True):
                # The first stage that failed is the clip's failure.
                if "message" in found:
                    record.message = record.message or f"stage {name}: {found['message']}"
                record.scores |= found.get("scores", {})
                if "vector" in found:
                    record.vectors[name] = found["vector"]
            if name in self._of_files:
                for _, same_size in _by_size(records, findings):
                    _agree(same_size, name, self._of_files[name])
        if not file.found.is_image:  # all clips of a file get the boxes that they agree on
            for size, same_size in _by_size(records, clips):
                corners = [clip["picture"] for _, clip in same_size]
                pictures = [Picture(*(PixelBox(*box) if box else None for box in boxes)) for boxes in corners]
                agreed = agreed_boxes(pictures, [record.duration_s for record, _ in same_size], *size)
                for (record, _), box in zip(same_size, agreed, strict=True):
                    record.picture = None if box == PixelBox(0, 0, *size) else tuple(box.corners())
        if shots["end"] is not None:
            rest = _record(file, shots["end"], paths)
            rest.message = shots["end"]["message"]
            records.append(rest)
        if facts is not None:
            _fill_rows(file, records, facts, paths)
        elif file.found.rows:
            for record in records:
                record.source_caption = file.found.rows[0].caption
                record.scores |= file.found.rows[0].scores


def _fill_rows(file: FileRecord, records: list[ClipRecord], facts: Sequence[Json], paths: tuple[Path, ...]) -> None:
    """Give each clip the row that requested its frames; a row whose frames are missing becomes a failed clip."""
    rows = {row.seconds: row for row in file.found.rows}
    untold = {(record.clip.first_frame, record.clip.last_frame): record for record in records}
    equal = 0
    for seconds, fact in zip(file.found.spans_s or (), facts, strict=True):
        row, span = rows[seconds], (fact["span"][0], fact["span"][1])
        if fact["message"] is not None and span not in untold:
            untold[span] = record = _record(file, fact, paths)
            record.message = f"{row.row}: {fact['message']}"
            records.append(record)
        if span in untold:
            record = untold.pop(span)
            record.source_caption = row.caption
            record.scores |= row.scores
        else:
            equal += 1
    if equal:
        warn(f"{file.found.name}: {equal} rows are left out, since earlier rows name the same frames")
    file.duration_us = sum(record.duration_us for record in records)


def _record(file: FileRecord, clip: Json, paths: tuple[Path, ...]) -> ClipRecord:
    assert file.info is not None
    first, last = clip["span"]
    span = Clip(file.source_id, first, last, clip["pts"][0], clip["pts"][1], file.info.time_base)
    width, height = clip.get("size", (file.info.width, file.info.height))
    found, lasts_us = file.found, clip["us"]
    record = ClipRecord(span, found.name, paths, clip["fps"], width, height, lasts_us, root=found.root)
    record.is_image = found.is_image
    return record


def _by_size(
    records: Sequence[ClipRecord], found: Sequence[Json]
) -> list[tuple[tuple[int, int], list[tuple[ClipRecord, Json]]]]:
    """A file's clips with their findings, grouped by frame size: only clips of one size are compared."""
    groups: dict[tuple[int, int], list[tuple[ClipRecord, Json]]] = {}
    for record, one in zip(records, found, strict=True):
        groups.setdefault((record.width, record.height), []).append((record, one))
    return sorted(groups.items(), key=lambda group: group[0])


def _agree(clips: Sequence[tuple[ClipRecord, Json]], name: str, stage: FileScore) -> None:
    """Give a file's clips the scores that depend on all of them; a stage that fails fails only this file's clips."""
    seen = [(record, found["memory"]) for record, found in clips if "memory" in found]
    try:
        agreed = [round_scores(scores) for scores in stage.agree([memory for _, memory in seen])]
    except Exception as error:
        for record, _ in seen:
            record.message = record.message or f"stage {name}: {error or type(error).__name__}"
        return
    for (record, _), scores in zip(seen, agreed, strict=True):
        record.scores |= scores
