"""Lists the videos and images of a folder, local or in an object store, and fetches those that are remote.

The order depends on names alone.
"""

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import Literal, TypeVar, get_args

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.storage import object_store
from nemo_vfm.core.storage.files import sha256_file, sha256_text
from nemo_vfm.core.storage.folder_walk import is_taken, say_passed_over, text_name, walk
from nemo_vfm.core.storage.object_store import items
from nemo_vfm.core.storage.uri import Address, Place, place
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.media_types import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from nemo_vfm.curate.record.ledger import SourceFile
from nemo_vfm.data.shards.sample_members import CAPTION_SUFFIXES, texts_beside_media

_T = TypeVar("_T")
Take = Literal["videos", "images", "both"]
_SUFFIXES = {"videos": VIDEO_SUFFIXES, "images": IMAGE_SUFFIXES, "both": VIDEO_SUFFIXES | IMAGE_SUFFIXES}
_ONE = {"videos": "video", "images": "image", "both": "video or image"}
_MAX_SIDECAR_BYTES = 64 << 20
_AT_ONCE = 8
_LONG_NAME = 200  # bytes; a file may have 255, and `.txt` comes behind a video's


@dataclass(frozen=True, slots=True)
class Subset:
    """A share of some things, and the first of that share; a larger share contains every smaller one."""

    first: int | None  #: how many at most; None takes all
    share: float | None  #: part of 1, rounded up to whole things; None takes all

    def __post_init__(self) -> None:
        if self.first is not None and self.first < 1:
            raise ValueError(f"first is {self.first}, but it must be at least 1")
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}, but it must be above 0 and at most 1, such as 0.01")

    def of(self, found: Sequence[_T], name: Callable[[_T], str], what: str) -> list[_T]:
        """The chosen items in their order; a share depends on the names alone."""
        chosen = list(found)
        if self.share is not None:
            by_lot = sorted(range(len(found)), key=lambda place: sha256_text(name(found[place])))
            count = math.ceil(self.share * len(found) - 1e-9)  # 0.07 * 100 is more than 7
            chosen = [found[place] for place in sorted(by_lot[:count])]
        chosen = chosen[: self.first]
        if len(chosen) < len(found):
            info(f"the source gives {len(chosen):,} of {len(found):,} {what}")
        return chosen


class Folder:
    """Every video file, every image, or both, in a folder and the folders below it.

    Hidden files and folders and unfinished downloads are skipped. Links to files are followed only while they stay
    inside the folder; others, pipes and the like are reported and counted in the ledger as `link_outside` and
    `no_regular_file`. Links to folders are not followed.

    Args:
        path: the user's folder, or one video file, here or in an object store (`s3://bucket/folder`); None takes
            `otherwise`.
        otherwise: where to look if the user names no folder.
        max_fetched_gb: disk space for videos fetched from a store, in GB (10^9 bytes); each is fetched when its turn
            comes.
        take: videos, images (JPEG, PNG and WebP, by the end of the name) or both. Covers and thumbnails
            often lie beside videos, so images are taken only on request.
        first: at most this many files, by name; None takes all.
        share: so large a part of the files, such as 0.01, spread over all of them and before `first` counts. A larger
            share contains a smaller one. None takes all.
    """

    def __init__(
        self,
        *,
        path: Place | None,
        otherwise: Place | None = None,
        max_fetched_gb: float = 100.0,
        take: Take = "videos",
        first: int | None = None,
        share: float | None = None,
    ) -> None:
        if path is None and otherwise is None:
            raise ValueError("no folder to read videos from: set input=DIR on the command line")
        if max_fetched_gb <= 0:
            raise ValueError(f"max_fetched_gb must be above 0, got {max_fetched_gb:g}")
        if take not in get_args(Take):
            raise ValueError(f"take is {take!r}; known are {', '.join(get_args(Take))}")
        self.take: Take = take
        self.first, self.share, self._subset = first, share, Subset(first, share)
        self.path = None if path is None else place(path)
        self.otherwise = None if otherwise is None else place(otherwise)
        self.max_fetched_gb = max_fetched_gb
        self._into: Path | None = None

    def fetch_into(self, folder: Path) -> None:
        self._into = folder

    def files(self) -> list[SourceFile]:
        """Every file that is taken, sorted by name.

        Raises:
            UserError: the folder is absent or holds no such file.
        """
        root = self.path if self.path is not None else self.otherwise
        assert root is not None
        if isinstance(root, Address):
            return self._list_stored(root)
        if root.is_file():
            return [SourceFile(root, text_name(root, root.parent), root=root.parent)]
        if not root.is_dir():
            raise UserError(f"{root} is not a folder or a file; give the folder that holds the videos or images")
        names: list[PurePath] = []

        def is_wanted(name: PurePath) -> bool:
            names.append(name)
            return is_taken(name, _SUFFIXES[self.take])

        listed = walk(root, is_wanted)
        files = [SourceFile(path, text_name(path, root), root=root, passed_over=why) for path, why in listed]
        found = sorted(files, key=lambda file: file.name)
        say_passed_over(root, names, _SUFFIXES["both"])
        if all(one.passed_over for one in found):
            others = sum(is_taken(name, _SUFFIXES["both"]) for name in names) - len(found)
            raise UserError(f"{root} holds no {_ONE[self.take]} file; {self._looked_for(others)}")
        taken = self._subset.of([one for one in found if not one.passed_over], lambda one: one.name, "files")
        return sorted([*taken, *(one for one in found if one.passed_over)], key=lambda one: one.name)

    def _looked_for(self, others: int = 0) -> str:
        hint = f". It holds {others} files of the other kind: source.take=both takes them" if others else ""
        return f"looked for names that end in {' '.join(sorted(_SUFFIXES[self.take]))}{hint}"

    def _list_stored(self, root: Address) -> list[SourceFile]:
        """The videos below an address; only their sidecars are fetched now."""
        if self._into is None:
            raise UserError(f"{root} is in an object store, and no folder was given to fetch its videos to")
        suffixes = _SUFFIXES[self.take]
        # The folder that an address means and all that is in it; of one object, the folder it lies in.
        below = items(root)
        one = not below and root.suffix in suffixes
        base, found = (root.parent, items(root.parent)) if one else (root, below)
        videos = [
            item
            for item in found
            if is_taken(PurePosixPath(item.name), suffixes) and (base == root or item.name == root.name)
        ]
        if not videos:
            raise UserError(f"{root} holds no {_ONE[self.take]}; {self._looked_for()}")
        if base == root:
            say_passed_over(root, (PurePosixPath(item.name) for item in found), _SUFFIXES["both"])
        videos = self._subset.of(videos, lambda item: item.name, "files")
        fetched = FetchedFile(base, self._into, int(self.max_fetched_gb * 1e9))
        fetched.fetch_sidecars(videos, found)
        return [
            SourceFile(
                fetched.path(video), video.name, partial(fetched.hold, video), identity=f"{video.stamp} {video.size}"
            )
            for video in videos
        ]


@no_component
class FetchedFile:
    """Fetches objects on request, and deletes those that are not in use, the oldest first.

    Args:
        folder: where fetched files lie; it belongs to this class.
        max_bytes: limit of their total size; a request beyond it waits until others are released.
    """

    def __init__(self, address: Address, folder: Path, max_bytes: int) -> None:
        self._address, self._folder, self._max_bytes = address, folder, max_bytes
        self._changed = threading.Condition()
        self._sizes: dict[Path, int] = {}  # of what is on the disk or on its way, the last used last
        self._held: Counter[Path] = Counter()
        self._hashes: dict[Path, str] = {}
        self._fetching: dict[Path, threading.Lock] = {}
        for path in sorted(folder.rglob("*"), key=lambda path: path.name) if folder.is_dir() else ():
            if path.is_file() and path.suffix.lower() not in CAPTION_SUFFIXES and not path.name.startswith("."):
                self._sizes[path] = path.stat().st_size

    def path(self, item: object_store.StoredObject) -> Path:
        """The path of a fetched file: another version of an object is another file."""
        parts = item.name.split("/")
        for number, part in enumerate(parts):  # a file's name may not be as long as an object's
            if len(part.encode()) > _LONG_NAME:
                parts[number] = f"{sha256_text(part)[:32]}{PurePosixPath(part).suffix[:16]}"
        name = "/".join(parts)
        return self._folder / sha256_text(f"{item.stamp} {item.size}")[:12] / name

    def fetch_sidecars(
        self, videos: Sequence[object_store.StoredObject], others: Sequence[object_store.StoredObject]
    ) -> None:
        """Fetch the text and JSON files beside videos to where the videos will be; they are small, and kept."""
        by_name = defaultdict[str, list[object_store.StoredObject]](list)
        for item in others:
            stem, dot, suffix = item.name.rpartition(".")
            by_name[stem + dot + suffix.lower()].append(item)
        wanted = []
        for video in videos:
            path = self.path(video)
            for name, here in zip(texts_beside_media(video.name), texts_beside_media(path.name), strict=True):
                items = by_name.get(name, [])[:1]
                wanted += [(item, path.with_name(here).with_suffix(Path(item.name).suffix)) for item in items]
        for item in (item for item, _ in wanted if item.size > _MAX_SIDECAR_BYTES):
            warn(f"{self._address / item.name} is not used for captions: it has {item.size:,} bytes")
        small = [(self._address / item.name, path) for item, path in wanted if item.size <= _MAX_SIDECAR_BYTES]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sidecars") as threads:
            list(threads.map(lambda pair: object_store.download(*pair), small))

    @contextmanager
    def hold(self, item: object_store.StoredObject) -> Iterator[Path]:
        """The object as a local file that stays while the block runs."""
        path = self.path(item)
        if item.size > self._max_bytes:
            raise DataError(f"{self._address / item.name} has {item.size:,} bytes; raise max_fetched_gb")
        with self._changed:
            while path not in self._sizes and not self._has_room(item.size):
                self._changed.wait()
            self._sizes[path] = self._sizes.pop(path, item.size)
            self._held[path] += 1
        try:
            with self._fetching.setdefault(path, threading.Lock()):
                if not path.is_file() or path.stat().st_size != item.size:
                    object_store.download(self._address / item.name, path, sha256=self._hashes.get(path))
                if path not in self._hashes:
                    self._hashes[path] = sha256_file(path)
            yield path
        finally:
            with self._changed:
                self._held[path] -= 1
                if not path.is_file():
                    self._sizes.pop(path, None)
                self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        for path in list(self._sizes):
            if sum(self._sizes.values()) + size <= self._max_bytes:
                return True
            if not self._held[path]:
                path.unlink(missing_ok=True)
                del self._sizes[path]
        return sum(self._sizes.values()) + size <= self._max_bytes
