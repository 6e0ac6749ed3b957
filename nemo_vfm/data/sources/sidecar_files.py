# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the text and JSON files beside a video that may hold its caption, the most trusted first."""

from collections.abc import Iterator
from pathlib import Path

from nemo_vfm.core.log import warn_once
from nemo_vfm.core.storage.files import is_file


def texts_beside(media: Path, root: Path | None = None) -> Iterator[Path]:
    """Those there are of `x.mp4.json`, `x.json`, `x.mp4.txt` and `x.txt`, for `x.mp4`.

    What they say ends up in shards and reports, so a link among them is followed as one among videos is: while it stays
    inside `root`, the folder that was given as the source; None takes the video's own.
    """
    inside = (root or media.parent).resolve()
    for path in (media.with_name(stem + end) for end in (".json", ".txt") for stem in (media.name, media.stem)):
        if not is_file(path):
            continue
        if path.resolve().is_relative_to(inside):
            yield path
        else:
            warn_once(f"{path} is a link that points outside {root or media.parent}; it is not used for captions")
