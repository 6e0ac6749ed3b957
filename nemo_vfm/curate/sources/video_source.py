"""Lists the videos and images of a folder, local or in an object store, in an order that depends on names alone."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import Literal, get_args

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.folder_walk import is_taken, say_passed_over, text_name, walk
from nemo_vfm.core.storage.object_store import Item, items
from nemo_vfm.core.storage.uri import Address, Place, place
from nemo_vfm.core.types.media_types import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from nemo_vfm.curate.record.stage import SourceFile
from nemo_vfm.curate.sources.remote_source import FetchedFile
from nemo_vfm.curate.sources.subset import Subset

Take = Literal["videos", "images", "both"]
_SUFFIXES = {"videos": VIDEO_SUFFIXES, "images": IMAGE_SUFFIXES, "both": VIDEO_SUFFIXES | IMAGE_SUFFIXES}
_ONE = {"videos": "video", "images": "image", "both": "video or image"}


class Folder:
    """Every video file, every image, or both, in a folder and the folders below it.

    Hidden files and folders and unfinished downloads are passed over. Links to files are followed only while they stay
    inside the folder; others, pipes and the like are reported and counted in the ledger as `link_outside` and
    `no_regular_file`. Links to folders are not followed.

    Args:
        path: the user's folder, or one video file, here or in an object store (`s3://bucket/folder`); None takes
            `otherwise`.
        otherwise: where to look if the user names no folder.
        max_fetched_gb: what videos fetched from a store may fill on the disk at once, in GB (10^9 bytes); each is
            fetched when its turn comes.
        take: videos, images (JPEG, PNG and WebP, by the end of the name) or both. Frames often lie beside videos as
            covers and thumbnails, so they are taken only where that is asked for.
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
        """See `Fetching.fetch_into`."""
        self._into = folder

    def files(self) -> list[SourceFile]:
        """Every file that is taken, sorted by name.

        Raises:
            UserError: the folder is absent or holds no such file.
        """
        root = self.path if self.path is not None else self.otherwise
        assert root is not None
        if isinstance(root, Address):
            return self._stored(root)
        if root.is_file():
            return [SourceFile(root, text_name(root, root.parent), root=root.parent)]
        if not root.is_dir():
            raise UserError(f"{root} is not a folder or a file; give the folder that holds the videos or images")
        names: list[PurePath] = []
        found = sorted(_media(root, _SUFFIXES[self.take], names), key=lambda f: f.name)
        say_passed_over(root, names, _SUFFIXES["both"])
        if all(one.passed_over for one in found):
            others = sum(is_taken(name, _SUFFIXES["both"]) for name in names) - len(found)
            raise UserError(f"{root} holds no {_ONE[self.take]} file; {self._looked_for(others)}")
        taken = self._subset.of([one for one in found if not one.passed_over], lambda one: one.name, "files")
        return sorted([*taken, *(one for one in found if one.passed_over)], key=lambda one: one.name)

    def _looked_for(self, others: int = 0) -> str:
        hint = f". It holds {others} files of the other kind: source.take=both takes them" if others else ""
        return f"looked for names that end in {' '.join(sorted(_SUFFIXES[self.take]))}{hint}"

    def _stored(self, root: Address) -> list[SourceFile]:
        """The videos below an address; nothing but their sidecars is fetched yet."""
        if self._into is None:
            raise UserError(f"{root} is in an object store, and no folder was given to fetch its videos to")
        suffixes = _SUFFIXES[self.take]
        base, found = _base(root, suffixes)
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
                fetched.path(video), video.name, partial(fetched.held, video), identity=f"{video.stamp} {video.size}"
            )
            for video in videos
        ]


def _base(root: Address, suffixes: frozenset[str]) -> tuple[Address, list[Item]]:
    """The folder that an address means and all that is in it; of one object, the folder it lies in."""
    below = items(root)
    one = not below and root.suffix in suffixes
    return (root.parent, items(root.parent)) if one else (root, below)


def _media(root: Path, suffixes: frozenset[str], names: list[PurePath]) -> Iterator[SourceFile]:
    """The files with one of these endings; `names` receives those of all files."""

    def wanted(name: PurePath) -> bool:
        names.append(name)
        return is_taken(name, suffixes)

    for path, why in walk(root, wanted):
        yield SourceFile(path, text_name(path, root), root=root, passed_over=why)
