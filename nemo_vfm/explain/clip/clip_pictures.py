"""Collects frames of a clip's thumbnail, its video and its latents for one sheet."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.storage.files import read_bytes
from nemo_vfm.data.shards.clip_id import is_key
from nemo_vfm.data.video.fit_to_bucket import decode_image
from nemo_vfm.explain.clip.clip_locations import Opened
from nemo_vfm.explain.clip.curation_folder import Curation
from nemo_vfm.explain.shards.sample_pictures import Frame, frames_of

_STRIP, _FILM, _LATENTS = 4, 8, 4


def thumbnail_frames(curation: Curation, clip: str) -> list[Frame]:
    """The frames of the thumbnail's strip; none where there is no such picture."""
    path = curation.folder / "thumbnails" / f"{clip}.jpg"
    if not is_key(clip) or not path.is_file():
        return []
    try:
        strip = decode_image(read_bytes(path))
    except (DataError, OSError):
        return []
    if curation.table.images[curation.texts("clip_id").index(clip)]:
        return [Frame(strip, "source")]
    parts = np.array_split(strip, _STRIP, axis=1)
    return [Frame(part, f"source, {number} of {_STRIP}") for number, part in enumerate(parts, start=1)]


def sheet_frames(curation: Curation, clip: str, opened: Opened | None, latents: Sequence[Opened]) -> list[Frame]:
    """The strip, then frames of the encoded clip, then its latents in false colours; what is damaged is left out."""
    found = thumbnail_frames(curation, clip)
    for one, most, what in [
        (opened, _FILM, "encoded"),
        *((one, _LATENTS, one.entry.key.rpartition("-")[2]) for one in latents[:4]),
    ]:
        if one is not None:
            found += [replace(frame, label=f"{what}, {frame.label}") for frame in _frames(one, most)]
    return found


def _frames(one: Opened, most: int) -> list[Frame]:
    try:
        return frames_of(one.shards, one.entry, most)
    except DataError:
        return []
