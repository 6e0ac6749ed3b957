# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A folder, here or in an object store, in; the videos in it out, in an order that depends on names alone."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.place import Address, Place, place
from nemo_vfm.core.store import Item, items
from nemo_vfm.curate.ledger import LINK_OUTSIDE, NO_REGULAR_FILE
from nemo_vfm.curate.stage import Found
from nemo_vfm.curate.stored import Fetched
from nemo_vfm.data.decode import VIDEO_SUFFIXES

_PARTIAL = ("~", ".part", ".partial", ".crdownload", ".tmp")


class Folder:
    """Every video file in a folder and the folders below it.

    Hidden files and folders and unfinished downloads are passed over. Links to files are followed only while they stay
    inside the folder; others, pipes and the like are said and counted in the ledger as `link_outside` and
    `no_regular_file`. Links to folders are not followed.

    Args:
        path: the user's folder, or one video file, here or in an object store (`s3://bucket/folder`); None takes
            `otherwise`.
        otherwise: where to look if the user names no folder.
        max_fetched_gb: what videos fetched from a store may fill on the disk at once, in GB (10^9 bytes); each is
            fetched when its turn comes.
    """

    def __init__(self, *, path: Place | None, otherwise: Place | None = None, max_fetched_gb: float = 100.0) -> None:
        if path is None and otherwise is None:
            raise ValueError("there is no folder to read videos from: set input=DIR on the command line")
        if max_fetched_gb <= 0:
            raise ValueError(f"max_fetched_gb must be above 0, got {max_fetched_gb:g}")
        self.path = None if path is None else place(path)
        self.otherwise = None if otherwise is None else place(otherwise)
        self.max_fetched_gb = max_fetched_gb
        self._into: Path | None = None

    def fetch_into(self, folder: Path) -> None:
        """See `Fetching.fetch_into`."""
        self._into = folder

    def files(self) -> list[Found]:
        """Every video file, sorted by name.

        Raises:
            UserError: the folder is absent or holds no video.
        """
        root = self.path if self.path is not None else self.otherwise
        assert root is not None
        if isinstance(root, Address):
            return self._stored(root)
        if root.is_file():
            return [Found(root, _name(root, root.parent), root=root.parent)]
        if not root.is_dir():
            raise UserError(f"{root} is not a folder or a video file; give the folder that holds the videos")
        found = sorted(_videos(root), key=lambda f: f.name)
        if all(one.passed_over for one in found):
            raise UserError(
                f"{root} holds no video file; looked for names that end in {' '.join(sorted(VIDEO_SUFFIXES))}"
            )
        return found

    def _stored(self, root: Address) -> list[Found]:
        """The videos below an address; nothing but their sidecars is fetched yet."""
        if self._into is None:
            raise UserError(f"{root} is in an object store, and no folder was given to fetch its videos to")
        base, found = _base(root)
        videos = [item for item in found if _is_video(item.name) and (base == root or item.name == root.name)]
        if not videos:
            raise UserError(f"{root} holds no video; looked for names that end in {' '.join(sorted(VIDEO_SUFFIXES))}")
        fetched = Fetched(base, self._into, int(self.max_fetched_gb * 1e9))
        fetched.fetch_sidecars(videos, found)
        return [
            Found(fetched.path(video), video.name, partial(fetched.held, video), identity=f"{video.stamp} {video.size}")
            for video in videos
        ]


def _base(root: Address) -> tuple[Address, list[Item]]:
    """The folder that an address means and all that is in it; of one object, the folder it lies in."""
    below = items(root)
    one = not below and root.suffix in VIDEO_SUFFIXES
    return (root.parent, items(root.parent)) if one else (root, below)


def _is_video(name: str) -> bool:
    """The rules for files, said of keys: no hidden part, no unfinished download, a video's ending."""
    hidden = any(part.startswith(".") for part in name.split("/"))
    return not hidden and not name.endswith(_PARTIAL) and PurePosixPath(name).suffix.lower() in VIDEO_SUFFIXES


def _name(path: Path, root: Path) -> str:
    """Its path below the root, for tables; bytes of a name that are no UTF-8 as `\\xff`, else nothing can hold it."""
    return os.fsencode(path.relative_to(root).as_posix()).decode("utf-8", "backslashreplace")


def _videos(root: Path) -> Iterator[Found]:
    inside = root.resolve()
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and not name.endswith(_PARTIAL) and path.suffix.lower() in VIDEO_SUFFIXES:
                # A pipe would be waited for, and a link that leads round in a circle cannot be resolved.
                why = None
                if not path.is_file():
                    why = NO_REGULAR_FILE
                    warn(f"{path} is not a regular file; it is skipped")
                elif not path.resolve().is_relative_to(inside):
                    why = LINK_OUTSIDE
                    warn(f"{path} is a link that points outside {root}; it is not followed")
                yield Found(path, _name(path, root), root=root, passed_over=why)
