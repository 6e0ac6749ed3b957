"""Reads a clip's caption from a file beside its video."""

import json
from functools import lru_cache
from pathlib import Path

from nemo_vfm.core.log import warn_once
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.data.shards.sample_members import caption_in, texts_beside

_MAX_BYTES = 64 << 20


class Sidecar:
    """Takes captions from a file beside the video.

    For `a/x.mp4` these are looked for, in this order: `x.mp4.json`, `x.json`, `x.mp4.txt`, `x.txt`, and the same with
    `.text` and `.caption`. A text file's text, and a JSON file's `{"caption": text}`, applies to every clip of the
    video. A JSON file may have a caption a shot instead: `{"captions": [{"first_frame": 0, "last_frame": 48,
    "caption": text}, ...]}` (last_frame exclusive); a clip takes the one it shares most frames with, the earlier where
    two share as many. A link is followed while it stays inside the source's folder.
    """

    def caption(self, record: ClipRecord) -> tuple[str, str] | None:
        """The text and `sidecar`, or None if no file beside the video has a caption for the clip."""
        span = (record.clip.first_frame, record.clip.last_frame)
        for path in (place for video in record.paths for place in texts_beside(video, record.root)):
            found = _read(path)
            if isinstance(found, str):
                text = found
            else:
                overlaps = [(min(span[1], last) - max(span[0], first), text) for first, last, text in found]
                frames, text = max(overlaps, key=lambda pair: pair[0], default=(0, ""))
                text = text if frames > 0 else ""
            if text:
                return text, "sidecar"
        return None


@lru_cache(maxsize=256)
def _read(path: Path) -> str | tuple[tuple[int, int, str], ...]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MiB")
        data = path.read_bytes()
        if (caption := caption_in(path.name, data)) or path.suffix.lower() != ".json":
            return caption
        content = json.loads(data)
        shots = content.get("captions", []) if isinstance(content, dict) else []
        if not isinstance(shots, list):
            raise ValueError(f'its "captions" is not a list but {str(shots)[:100]}')
        found = []
        for shot in shots:
            match shot:
                case {"first_frame": int(first), "last_frame": int(last), "caption": str(text)} if first < last:
                    found.append((first, last, text.strip()))
                case _:
                    raise ValueError(f"an entry needs first_frame < last_frame and a caption, got {str(shot)[:100]}")
        return tuple(found)
    except (OSError, ValueError, RecursionError) as error:
        warn_once(f"{path} is not used for captions: {error}")
        return ""
