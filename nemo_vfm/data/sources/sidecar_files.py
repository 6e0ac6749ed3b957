"""Finds the text and JSON files beside a video that may hold its caption, the most trusted first."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from nemo_vfm.core.log import warn_once
from nemo_vfm.data.shards.sample_members import CAPTION_SUFFIXES, texts_beside_media


def texts_beside(media: Path, root: Path | None = None) -> Iterator[Path]:
    """Those there are of `x.mp4.json`, `x.json`, `x.mp4.txt`, `x.txt` and so on, for `x.mp4`.

    What they say ends up in shards and reports, so a link among them is followed as one among videos is: while it stays
    inside `root`, the folder that was given as the source; None takes the video's own.
    """
    inside = (root or media.parent).resolve()
    names = _texts_in(media.parent, media.parent.stat().st_mtime_ns) if media.parent.is_dir() else {}
    for path in (media.with_name(names[name]) for name in texts_beside_media(media.name) if name in names):
        if not path.is_file():
            continue
        if path.resolve().is_relative_to(inside):
            yield path
        else:
            warn_once(f"{path} is a link that points outside {root or media.parent}; it is not used for captions")


@lru_cache(maxsize=64)
def _texts_in(folder: Path, changed_ns: int) -> Mapping[str, str]:
    """The folder's texts, by their names with the suffix in small letters; listed anew when the folder has changed."""
    found = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in CAPTION_SUFFIXES)
    return {name.removesuffix(suffix := Path(name).suffix) + suffix.lower(): name for name in found}
