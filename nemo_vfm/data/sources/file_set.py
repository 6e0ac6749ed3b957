"""Serves video and image files, with captions beside them, as samples like those of shards; nothing is copied."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.storage.folder_walk import files_below, is_taken, say_passed_over
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import TRAINED_IMAGE_SUFFIXES, VIDEO_SUFFIXES
from nemo_vfm.data.shards.shard_files import Entry
from nemo_vfm.data.video.media_info import stamp

_ODD = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class CaptionedFile:
    """A file that is to be trained on."""

    name: str  #: relative to the folder, with forward slashes; the sample's key follows from it
    path: Path  #: where it is
    caption: str  #: its text


class FileSet:
    """Files as samples, each by its name; one that changed after it was listed is refused.

    Args:
        folder: what messages call the whole.
        files: the samples, in order.
        facts: name -> size, mtime_ns, width, height, num_frames and fps, or `why` it cannot be used.
    """

    def __init__(self, folder: Path, files: Sequence[CaptionedFile], facts: Mapping[str, Mapping[str, Json]]) -> None:
        self.folder = folder
        self._paths = {file.name: file.path for file in files}
        several = len(self._paths) < len(files)  # one film with two captions is two samples
        entries = []
        for file in files:
            of, suffix = facts[file.name], file.path.suffix.lower()
            kind = suffix[1:] if suffix in TRAINED_IMAGE_SUFFIXES else "mp4"  # what a video really is, its bytes say
            members = {} if "why" in of else {kind: (0, int(of["size"]))}
            label = f"{file.name}\n{file.caption}" if several else file.name
            key = f"{_ODD.sub('-', file.name)[-60:]}-{sha256_text(label)[:16]}"
            entries.append(Entry(key, file.name, members, {**of, "caption": file.caption, "clip": file.name}))
        self.entries = tuple(entries)

    def read(self, entry: Entry, extension: str) -> bytes:
        """See `Samples.read`."""
        try:
            return self.path(entry, extension).read_bytes()
        except OSError as error:
            raise DataError(f"{self._paths[entry.shard]} cannot be read: {error}") from error

    def read_all(self, entry: Entry, extensions: Sequence[str]) -> list[bytes]:
        """See `Samples.read_all`."""
        return [self.read(entry, extension) for extension in extensions]

    def path(self, entry: Entry, extension: str) -> Path:
        """The file, as it was listed."""
        path = self._paths[entry.shard]
        if stamp(path) != (entry.index["size"], entry.index["mtime_ns"]):
            raise DataError(f"{path} was changed or removed after it was listed")
        return path


def media_files(root: Path) -> list[Path]:
    """Every video and picture in a folder and those below it, sorted by name.

    Hidden files and folders and unfinished downloads are passed over, as are links that lead out of the folder.
    """
    if not root.is_dir():
        raise UserError(f"{root} is not a folder; give the folder that holds the videos")
    taken, names = VIDEO_SUFFIXES | TRAINED_IMAGE_SUFFIXES, list[PurePath]()

    def is_wanted(name: PurePath) -> bool:
        names.append(name)
        return is_taken(name, taken)

    found = files_below(root, is_wanted)
    say_passed_over(root, names, taken)
    if not found:
        raise UserError(f"{root} holds no video or image; expected names ending in .mp4, .mkv, .webm, .png ...")
    return found
