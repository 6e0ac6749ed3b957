"""Finds where a clip's bytes lie, what its record says, what was encoded of it, and the pictures of all that."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import read_bytes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.shards.clip_id import is_key
from nemo_vfm.data.shards.shard_files import Entry, ShardSet
from nemo_vfm.data.video.fit_to_bucket import decode_image
from nemo_vfm.explain.clip.curation_folder import Curation, parse_json, read_plain
from nemo_vfm.explain.shards.sample_pictures import SheetPicture, frames_of

_STRIP, _FILM, _LATENTS = 4, 8, 4


@dataclass(slots=True)
class Bytes:
    """A sample of shards."""

    folder: str  #: of the shards
    shard: str  #: the tar's name
    key: str  #: the sample's
    members: dict[str, tuple[int, int]]  #: extension -> (offset in the tar, bytes)
    index: Json  #: its entry in the index


@dataclass(slots=True)
class EncodedClip:
    """What one encode step made of the clip."""

    step: str  #: its folder
    #: windows of the clip, each with its latents; none where the step left it out
    samples: list[Bytes] = field(default_factory=list)
    codec: str = ""  #: what encoded it
    #: reason -> clips that this step left out for it, if it did not encode the clip
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class OpenedShards:
    """The shards that a clip lies in, for reading what is in them."""

    shards: ShardSet
    entry: Entry

    def resolve(self) -> Bytes:
        """As it is printed."""
        entry = self.entry
        return Bytes(str(self.shards.folder), entry.shard, entry.key, dict(entry.members), dict(entry.index))

    def record(self) -> Json:
        """The json member; empty where there is none, or it is damaged."""
        if "json" not in self.entry.members:
            return {}
        try:
            return parse_json(self.shards.read(self.entry, "json"))
        except DataError:
            return {}


def encodings(curation: Curation, clip: str) -> tuple[list[EncodedClip], list[OpenedShards]]:
    """What each encode step of the run made of the clip, and all of its latents."""
    resolved, opened = [], []
    for file in sorted(curation.folder.parent.glob("*/encode.json")):
        report, folder = read_plain(file), file.parent
        found = opened_in(folder / "shards", lambda entry: entry.index.get("clip") == clip)
        opened += found
        left = {} if found else _reasons(report, "unbinned") | _reasons(report, "failed")
        resolved.append(EncodedClip(str(folder), [one.resolve() for one in found], str(report.get("codec", "")), left))
    return resolved, opened


def opened_in(folder: Path, wanted: Callable[[Entry], bool]) -> list[OpenedShards]:
    """The samples in a folder of shards that are wanted; none where it holds no shards, or they are damaged."""
    if not (folder / "shards.json").is_file():
        return []
    try:
        shards = ShardSet(folder)
    except (DataError, UserError):
        return []
    return [OpenedShards(shards, entry) for entry in shards.entries if wanted(entry)]


def _reasons(report: Json, name: str) -> dict[str, int]:
    found = report.get(name)
    return {str(why): int(count) for why, count in found.items()} if isinstance(found, dict) else {}


def thumbnail_frames(curation: Curation, clip: str) -> list[SheetPicture]:
    """The frames of the thumbnail's strip; none where there is no such picture."""
    path = curation.folder / "thumbnails" / f"{clip}.jpg"
    if not is_key(clip) or not path.is_file():
        return []
    try:
        strip = decode_image(read_bytes(path))
    except (DataError, OSError):
        return []
    if curation.table.images[curation.texts("clip_id").index(clip)]:
        return [SheetPicture(strip, "source")]
    parts = np.array_split(strip, _STRIP, axis=1)
    return [SheetPicture(part, f"source, {number} of {_STRIP}") for number, part in enumerate(parts, start=1)]


def sheet_frames(
    curation: Curation, clip: str, opened: OpenedShards | None, latents: Sequence[OpenedShards]
) -> list[SheetPicture]:
    """The strip, then frames of the encoded clip, then its latents in false colours; what is damaged is left out."""
    found = thumbnail_frames(curation, clip)
    for one, most, what in [
        (opened, _FILM, "encoded"),
        *((one, _LATENTS, one.entry.key.rpartition("-")[2]) for one in latents[:4]),
    ]:
        with suppress(DataError):
            frames = [] if one is None else frames_of(one.shards, one.entry, most)
            found += [replace(frame, label=f"{what}, {frame.label}") for frame in frames]
    return found
