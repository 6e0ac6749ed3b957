"""Keeps the encoded clips of a curation: as files until they are in the shards, from then on in the shards alone.

What is known of a clip, its fact, stays a small file in `work/clips`, which says when only the shards hold the clip.
Such facts go before their shards do: a kill in between costs an encoding, never a wrong clip.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import read_json, write_bytes, write_json
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.examine.findings_cache import fingerprint, in_names
from nemo_vfm.curate.record.stage import ClipRecord, Restorer
from nemo_vfm.data.shards.shard_files import ShardSet, verify
from nemo_vfm.data.shards.shard_index import Entry
from nemo_vfm.data.video.codecs import Decoding

_IN_SHARDS = "in_shards"


@dataclass(frozen=True, slots=True)
class Media:
    """Where encoded clips lie: under a name that changes with what they were encoded with.

    Args:
        folder: of all encoded clips.
        stamp: the fingerprint of encoder and restorers.
        shards: the finished clip shards, which may be the only place of a clip's media.
    """

    folder: WritePath
    stamp: str
    shards: Path

    @classmethod
    def of(
        cls, folder: Path, shards: Path, transcode: object, restore: Mapping[str, Restorer], decode: Decoding = "cpu"
    ) -> "Media":
        """The place of clips encoded with these settings."""
        return cls(folder, fingerprint(transcode, list(restore.items()), *in_names(decode))[:8], shards)

    def path(self, clip_id: str) -> Path:
        """Where a clip's mp4 lies, or will lie."""
        return self.folder / f"{clip_id}-{self.stamp}.mp4"

    def image_path(self, clip_id: str, extension: str) -> Path:
        """Where an image lies, or will lie; `.jpg` without `.image` is the picture of before and after."""
        return self.folder / f"{clip_id}-{self.stamp}.image.{extension}"

    def file_of(self, record: ClipRecord) -> Path:
        """The file of a clip or an image that is encoded; one that only the shards hold is taken out of them.

        Raises:
            UserError: the shards cannot be read.
        """
        clip_id, fact = record.clip.id, self.fact_of(record)
        self._take_out(clip_id, fact)
        return self._files(clip_id, fact)[0]

    def fact_of(self, record: ClipRecord) -> Json:
        """Size, sound and what was mended, of a clip that is encoded; None where it is not, or with another box."""
        clip_id = record.clip.id
        try:
            fact = read_json(self.path(clip_id).with_suffix(".json"))
            picture = None if record.picture is None else list(record.picture)
            same_box = fact.get("picture", picture) == picture
            return fact if same_box and self._is_there(clip_id, fact) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def make_way(self, kept: Sequence[ClipRecord]) -> None:
        """Before the shards are written anew: what only the old ones hold and the new ones will not is taken out.

        What was encoded with other settings is forgotten.
        """
        wanted = {record.clip.id for record in kept}
        for file in sorted(self.folder.glob("*.json")):
            clip_id, _, stamp = file.stem.rpartition("-")
            try:
                fact = read_json(file)
                if (clip_id in wanted and stamp == self.stamp) or self._has_files(clip_id, fact, stamp):
                    continue
                if stamp == self.stamp and self._is_there(clip_id, fact):
                    self._take_out(clip_id, fact)
                    write_json(file, {**fact, _IN_SHARDS: False})
                    continue
            except (OSError, ValueError, KeyError, TypeError, UserError):
                pass
            file.unlink()

    def drop(self, kept: Sequence[ClipRecord]) -> None:
        """Delete the media of clips that the shards hold, once every byte of the shards is right.

        Raises:
            UserError: the shards are not as they were written.
        """
        facts = {one.clip.id: fact for one in kept if not (fact := self.fact_of(one)).get(_IN_SHARDS)}
        if facts and (problems := verify(self.shards)):
            raise UserError(f"{problems[0]}, although it was just written; check the disk. The clips are kept in "
                            f"{self.folder}, and the next run writes the shards again")  # fmt: skip
        for clip_id, fact in facts.items():
            write_json(self.path(clip_id).with_suffix(".json"), {**fact, _IN_SHARDS: True})
        for one in kept:
            for file in self._files(one.clip.id, self.fact_of(one)):
                file.unlink(missing_ok=True)

    def _files(self, clip_id: str, fact: Json, stamp: str | None = None) -> list[Path]:
        """The media that belongs to a fact: the clip or image first, then its sound."""
        name = f"{clip_id}-{stamp or self.stamp}"
        if "image" in fact:
            return [self.folder / f"{name}.image.{fact['image']}"]
        return [self.folder / f"{name}.{kind}" for kind in ("mp4", *(["flac"] if fact["audio"] == "flac" else []))]

    def _has_files(self, clip_id: str, fact: Json, stamp: str | None = None) -> bool:
        return all(file.is_file() for file in self._files(clip_id, fact, stamp))

    def _is_there(self, clip_id: str, fact: Json) -> bool:
        moved = bool(fact.get(_IN_SHARDS)) and clip_id in _opened(self.shards, _changed(self.shards))[1]
        return moved or self._has_files(clip_id, fact)

    def _take_out(self, clip_id: str, fact: Json) -> None:
        if self._has_files(clip_id, fact):
            return
        shards, entries = _opened(self.shards, _changed(self.shards))
        assert shards is not None, "is_there was asked before"
        for file in self._files(clip_id, fact):
            try:
                write_bytes(file, shards.read(entries[clip_id], file.suffix[1:]))
            except DataError as error:
                raise UserError(f"{self.shards} cannot be read ({error}); delete that folder, and its clips are "
                                f"encoded again") from error  # fmt: skip


def _changed(shards: Path) -> int:
    """When the shards were written; -1 where there are none."""
    index = shards / "shards.json"
    return index.stat().st_mtime_ns if index.is_file() else -1


@lru_cache(maxsize=2)
def _opened(shards: Path, changed: int) -> tuple[ShardSet | None, dict[str, Entry]]:
    if changed < 0:
        return None, {}
    try:
        found = ShardSet(shards)
    except (DataError, UserError):
        return None, {}
    return found, {entry.key: entry for entry in found.entries}
