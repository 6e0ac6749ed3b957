# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A folder in, the video files in it out, in an order that does not depend on the file system."""

import os
from collections.abc import Iterator
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import warn
from nemo_vfm.curate.stage import Found
from nemo_vfm.data.decode import VIDEO_SUFFIXES

_PARTIAL = ("~", ".part", ".partial", ".crdownload", ".tmp")


class Folder:
    """Every video file in a folder and the folders below it.

    Hidden files and folders and unfinished downloads are passed over. Links are followed only while they stay
    inside the folder; others are said and left alone.

    Args:
        path: the user's folder, or one video file; None takes `otherwise`.
        otherwise: where to look if the user names no folder.
    """

    def __init__(self, *, path: Path | None, otherwise: Path | None = None) -> None:
        if path is None and otherwise is None:
            raise ValueError("there is no folder to read videos from: set input=DIR on the command line")
        self.path, self.otherwise = path, otherwise

    def files(self) -> list[Found]:
        """Every video file, sorted by name.

        Raises:
            UserError: the folder is absent or holds no video.
        """
        root = self.path if self.path is not None else self.otherwise
        assert root is not None
        if root.is_file():
            return [Found(root, root.name)]
        if not root.is_dir():
            raise UserError(f"{root} is not a folder or a video file; give the folder that holds the videos")
        found = sorted((Found(path, path.relative_to(root).as_posix()) for path in _videos(root)), key=lambda f: f.name)
        if not found:
            raise UserError(
                f"{root} holds no video file; looked for names that end in {' '.join(sorted(VIDEO_SUFFIXES))}"
            )
        return found


def _videos(root: Path) -> Iterator[Path]:
    inside = root.resolve()
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and not name.endswith(_PARTIAL) and path.suffix.lower() in VIDEO_SUFFIXES:
                if path.resolve().is_relative_to(inside):
                    yield path
                else:
                    warn(f"{path} is a link that points outside {root}; it is not followed")
