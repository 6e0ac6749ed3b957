"""Reads folders of clip shards: a record of each sample, and its frames as stages see them.

Shape letters: T frames, H height, W width, C colours (RGB).
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.uri import Place
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.examine.examine_file import downscale
from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.data.shards.clip_id import Clip, is_key, key_of
from nemo_vfm.data.shards.sample_members import is_image, json_among, media_among
from nemo_vfm.data.shards.sample_reader import caption_of
from nemo_vfm.data.shards.shard_files import Entry, ShardSet
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.fit_to_bucket import decode_image

_SIDE_PX = 256


@dataclass(frozen=True, slots=True)
class KeyedClip(Clip):
    """A clip identified by its key in the shard, which others may have written."""

    key: str = ""

    @property
    def id(self) -> str:
        """The key."""
        return self.key


@dataclass(frozen=True, slots=True)
class ShardClip:
    """One sample of one of the folders."""

    shards: ShardSet
    entry: Entry  #: what is known of the sample
    key: str  #: names it among the samples of all folders, and in shards that are written

    def media(self) -> str | None:
        """The extension of its video or picture; None where it has neither."""
        return media_among(self.entry.members)

    def read(self) -> bytes:
        """The bytes of its video or picture."""
        extension = self.media()
        if extension is None:
            raise DataError("it holds neither a video nor a picture")
        return self.shards.read(self.entry, extension)

    def members(self) -> dict[str, bytes]:
        """All that the sample holds."""
        names = sorted(self.entry.members)
        return dict(zip(names, self.shards.read_all(self.entry, names), strict=True))

    def record(self, facts: Mapping[str, Json]) -> ClipRecord:
        """The sample as tables and rules know it; what it holds of numbers are its scores.

        Args:
            facts: num_frames, fps, width and height, as they are or were found when it was decoded.
        """
        own, fps = self.entry.index, float(facts["fps"])
        if (name := json_among(self.entry.members)) is not None:
            with suppress(ValueError, RecursionError, DataError):  # what is damaged says nothing
                content = json.loads(self.shards.read(self.entry, name))
                own = {**content, **self.entry.index} if isinstance(content, dict) else own
        first, count = own.get("first_frame"), int(facts["num_frames"])
        first = first if type(first) is int and first >= 0 else 0
        source = str(own.get("source_id") or self.entry.key)
        clip = KeyedClip(source, first, first + count, 0, count, Fraction(1) / Fraction(fps), self.key)
        scores, still = own.get("scores"), is_image(self.media())
        plain = {
            name: value for name, value in (scores if isinstance(scores, dict) else {}).items()
            if isinstance(value, str) or (type(value) in (int, float) and np.isfinite(value))
        }  # fmt: skip
        named = str(own.get("source") or f"{self.shards.folder}/{self.entry.shard}")
        record = ClipRecord(
            clip, named.encode(errors="backslashreplace").decode(), (Path(self.entry.shard),), fps,
            int(facts["width"]), int(facts["height"]), 0 if still else round(count / fps * 1e6),
            scores=plain, is_image=still,
        )  # fmt: skip
        record.caption = caption_of(self.shards, self.entry)
        return record


@contextmanager
def footage_of(data: bytes, is_picture: bool) -> Iterator[tuple[ClipFrames, dict[str, Json]]]:
    """The clip's frames, small, while the block runs, and its num_frames, fps, width and height."""
    if is_picture:
        picture = decode_image(data)
        facts = {"num_frames": 1, "fps": 1.0, "width": picture.shape[1], "height": picture.shape[0]}
        yield ClipFrames.of(downscale(picture, _SIDE_PX)[None], 1.0), facts
        return
    with open_video(data) as reader:
        info = reader.info()
        footage = ClipFrames(
            info.num_frames, info.fps,
            lambda numbers: np.stack([downscale(frame, _SIDE_PX) for frame in reader.read(list(numbers))]),
        )  # fmt: skip
        facts = {"num_frames": info.num_frames, "fps": info.fps, "width": info.width, "height": info.height}
        yield footage, facts


def open_all(folders: Sequence[Place]) -> list[ShardClip]:
    """Every sample of every folder, in order."""
    opened = [ShardSet(folder) for folder in folders]
    counts = Counter(entry.key for shards in opened for entry in shards.entries)
    clips = []
    for number, shards in enumerate(opened):
        for entry in shards.entries:
            # Its own, which our index vouches for; of tars of others a new one, where it is odd or in several folders.
            own = shards.is_indexed or (counts[entry.key] == 1 and is_key(entry.key))
            key = entry.key if own else key_of(entry.key, f"{number}/{entry.shard}/{entry.key}")
            clips.append(ShardClip(shards, entry, key))
    if not clips:
        raise UserError(f"{', '.join(map(str, folders))} hold no samples; give folders of clip shards")
    return clips
