"""Computes what each comparing stage remembers of the clips of shards, and keeps it on disk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.frame_rate import is_frame_rate
from nemo_vfm.core.log import bar, warn
from nemo_vfm.core.storage.files import write_bytes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import Frames
from nemo_vfm.curate.examine.examine_file import thumbnail
from nemo_vfm.curate.examine.findings_cache import Cache, fingerprint
from nemo_vfm.curate.execute.ordered import ordered
from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.stage import ClipRecord, Compares, Comparison, Learned
from nemo_vfm.curate.sources.shard_clips import ShardClip, footage_of
from nemo_vfm.data.shards.clip_id import source_id
from nemo_vfm.data.shards.sample_members import is_image

_UNKNOWN = {"num_frames": 1, "fps": 1.0, "width": 0, "height": 0}


def _known(index: Mapping[str, Json]) -> dict[str, Json]:
    """Facts of a clip that could not be decoded, as far as its index tells them."""
    measured = {name: index[name] for name in _UNKNOWN if name in index}
    if not is_frame_rate(measured.get("fps", 1.0)):
        del measured["fps"]
    return {**_UNKNOWN, **measured}


@dataclass(frozen=True, slots=True)
class Remembering:
    """What is done to every clip.

    Args:
        stages: compare clips, by name.
        work: folder of what was remembered before.
        thumbnails: folder for `<key>.jpg`.
        workers: clips at once; None takes one a core.
    """

    stages: Mapping[str, Compares]
    work: Path
    thumbnails: Path
    workers: int | None

    def records(self, clips: Sequence[ShardClip]) -> tuple[list[ClipRecord], list[str]]:
        """A record a clip and its media's sha256, in order. One that cannot be decoded has failed, with the reason."""
        caches = self._caches()
        records, hashes = [], []
        with bar("look", len(clips), unit="clips") as line:
            for clip, seen in zip(
                clips, ordered(_See(self.stages, caches, self.thumbnails), clips, workers=self.workers), strict=True
            ):
                records.append(self._record(clip, seen, caches))
                hashes.append(seen.key)
                line.advance(note=clip.key)
        return records, hashes

    def _caches(self) -> dict[str, Cache]:
        return {name: Cache(self.work / fingerprint(stage)) for name, stage in self.stages.items()}

    def _record(self, clip: ShardClip, seen: "_Seen", caches: Mapping[str, Cache]) -> ClipRecord:
        """Models are asked here, in one thread."""
        facts = seen.facts or _known(clip.entry.index)
        record = clip.record(facts)
        record.message, record.vectors = seen.message, dict(seen.vectors)
        for column in (column for stage in self.stages.values() for column in stage.columns()):
            record.scores.pop(column, None)  # of an earlier curation, among other clips
        for name, frames in seen.frames.items():
            stage = self.stages[name]
            assert isinstance(stage, Learned)
            stage.load()
            (finding,) = stage.judge([frames])
            if finding.vector is not None:
                record.vectors[name] = finding.vector
                caches[name].put(seen.key, {"vector": finding.vector, "facts": seen.facts})
        return record


@dataclass(slots=True)
class _Seen:
    key: str
    facts: Mapping[str, Json] | None
    vectors: dict[str, str]
    frames: dict[str, Frames]
    message: str | None = None


@dataclass(frozen=True, slots=True)
class _See:
    """Decodes a clip and asks the stages without weights; work for threads."""

    stages: Mapping[str, Compares]
    caches: Mapping[str, Cache]
    thumbnails: Path

    def __call__(self, clip: ShardClip) -> _Seen:
        seen = _Seen("", None, {}, {})
        try:
            data = clip.read()
            seen.key = source_id(data)
            self._look(clip, data, seen)
        except UserError:
            raise  # a store that does not answer, a package that is missing: no other clip would fare better
        except (DataError, ValueError) as error:
            seen.message = str(error)
            warn(f"failed: {clip.entry.key} in {clip.entry.shard}: {error}")
        return seen

    def _look(self, clip: ShardClip, data: bytes, seen: _Seen) -> None:
        known = {name: cache.get(seen.key) for name, cache in self.caches.items()}
        picture = self.thumbnails / f"{clip.key}.jpg"
        if all(value is not None for value in known.values()) and picture.is_file():
            seen.vectors = {name: value["vector"] for name, value in known.items()}
            seen.facts = next(iter(known.values()))["facts"]
            return
        with footage_of(data, is_image(clip.media())) as (footage, seen.facts):
            for name, stage in self.stages.items():
                self._ask(name, stage, footage, seen)
            write_bytes(picture, thumbnail(footage))

    def _ask(self, name: str, stage: Compares, footage: ClipFrames, seen: _Seen) -> None:
        if isinstance(stage, Comparison):
            seen.vectors[name] = stage.remember(footage)
            self.caches[name].put(seen.key, {"vector": seen.vectors[name], "facts": seen.facts})
        elif isinstance(stage, Learned):
            wanted = stage.wanted(footage.num_frames, footage.fps)
            seen.frames[name] = np.asarray(footage.frames(wanted), dtype=np.uint8)
