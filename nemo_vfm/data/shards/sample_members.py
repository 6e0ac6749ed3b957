"""Tells by their names which files or members of a sample are its media, its caption and its facts.

A member of a tar is known by its extension, all after the first dot of its file's name. The last suffix decides what it
is: of `my.video.mp4` the key is `my`, and `video.mp4` is a video.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from nemo_vfm.core.log import warn_once
from nemo_vfm.core.types.json_value import Json

LATENTS, TEXT = "latents.safetensors", "text.safetensors"
#: Members that training data is asked for by name, such as actions: extension -> name of the one tensor in it.
AskedMembers = Mapping[str, str]
NOTHING_ASKED: AskedMembers = {}
#: What every batch may have: no member that is asked for can have such a name.
OWN_TENSORS = ("latents", "text", "mask", "video")
VIDEOS, IMAGES = ("mp4", "mkv", "webm", "mov", "avi"), ("png", "jpg", "jpeg")
#: What may hold a caption, the most trusted first; in capitals, too.
CAPTION_SUFFIXES = (".json", ".txt", ".text", ".caption")


def is_image(extension: str | None) -> bool:
    """Whether a member is a picture."""
    return _last_extension(extension or "") in IMAGES


def media_among(members: Collection[str]) -> str | None:
    """The extension of the sample's video, else of its picture: one without a second suffix, such as seg.png, first."""
    kinds = (*VIDEOS, *IMAGES)
    plain = next((kind for kind in kinds if kind in members), None)
    return plain or next((name for kind in kinds for name in members if _last_extension(name) == kind), None)


def texts_beside_media(media: str) -> list[str]:
    """Names of the texts that may lie beside a video or picture, the most trusted first: x.mp4.json, x.json, ..."""
    return [name + suffix for suffix in CAPTION_SUFFIXES for name in (media, media.rpartition(".")[0])]


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


def texts_among(members: Collection[str]) -> list[str]:
    """The members that may hold the sample's caption, the most trusted first."""
    media = media_among(members) or ""
    stems = dict.fromkeys((media, media.rpartition(".")[0], ""))
    names = [f"{stem}{suffix}".removeprefix(".") for suffix in CAPTION_SUFFIXES for stem in stems]
    return [name for name in names if name in members]


def json_among(members: Collection[str]) -> str | None:
    """The member that holds the sample's facts, if any does."""
    return next((name for name in texts_among(members) if _last_extension(name) == "json"), None)


def caption_in(name: str, data: bytes) -> str:
    """The caption in a file, JSON or text by its last suffix, else empty. ValueError or RecursionError if damaged."""
    text = data.decode("utf-8-sig")
    if _last_extension(name) != "json":
        return text.strip()
    content: Json = json.loads(text)
    caption = content.get("caption") if isinstance(content, dict) else None
    return caption.strip() if isinstance(caption, str) else ""


def _last_extension(name: str) -> str:
    return name.rpartition(".")[2].lower()
