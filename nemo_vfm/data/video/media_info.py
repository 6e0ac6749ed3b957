"""Reads size, length and rate of video and image files; results are cached for files that did not change."""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.log import bar, info, warn
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.storage.write_path import require_own
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import TRAINED_IMAGE_SUFFIXES
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.fit_to_bucket import image_size
from nemo_vfm.data.video.image_file import is_deep
from nemo_vfm.data.video.video_info import check_size

FACTS_SCHEMA = "nemo_vfm.file_facts/3"
_BEGINNING = b'{\n "schema": "nemo_vfm.file_facts/'  # of every version
_AT_ONCE = 8  # mostly waiting for the disk; FFmpeg lets go of Python while it reads
_SAVE_EVERY = 2048
_SHOWN = 5
_MAX_INDEX_BYTES = 2 << 30

Facts = Mapping[str, Json]


def stamp(path: Path) -> tuple[int, int] | None:
    """Bytes and time of the last change in ns; None where there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def facts_of_files(paths: Mapping[str, Path], index: Path | None) -> dict[str, Facts]:
    """What each file holds; those that `index` knows and that did not change since are not opened.

    Args:
        paths: name -> file.
        index: where the facts are kept, written while the files are looked at; None keeps nothing.
    """
    if index is not None:
        require_own(index, _BEGINNING, "an index of media files")
    stamps = {name: stamp(path) for name, path in paths.items()}
    known = _read_index(index)
    found = {n: known[n] for n in paths if n in known and (known[n]["size"], known[n]["mtime_ns"]) == stamps[n]}
    new = [name for name in paths if name not in found]
    if new:
        info(f"{len(new)} of {len(paths)} files are new or changed and are examined once")
        names = iter(new)
        with (
            ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="look") as threads,
            bar("look at", len(new), unit="files") as line,
        ):
            while some := list(islice(names, _SAVE_EVERY)):
                for name, facts in zip(some, threads.map(lambda name: _facts(paths[name]), some), strict=True):
                    found[name] = facts
                    line.advance()
                if index is not None:
                    write_json(index, {"schema": FACTS_SCHEMA, "files": found})
    unused = [name for name in paths if "why" in found[name]]
    for name in unused[:_SHOWN]:
        warn(f"{paths[name]} is left out: {found[name]['why']}")
    if len(unused) > _SHOWN:
        warn(f"{len(unused) - _SHOWN} more files are left out")
    if broken := sum(bool(found[name].get("has_holes")) for name in paths):
        warn(f"{broken} of {len(paths)} files have gaps in their timestamps; only the longest part without a gap "
             "is used. Curation makes clips of every part")  # fmt: skip
    return found


def _facts(path: Path) -> Facts:
    at = stamp(path)
    if at is None:
        return {"size": 0, "mtime_ns": 0, "why": "there is no such file"}
    file = {"size": at[0], "mtime_ns": at[1]}
    try:
        if path.suffix.lower() in TRAINED_IMAGE_SUFFIXES:
            data = path.read_bytes()
            width, height = image_size(data)
            check_size(width, height, str(path))
            known = {**file, "width": width, "height": height, "num_frames": 1, "fps": 1.0}
            return {**known, "is_deep": True} if is_deep(data) else known
        with open_video(path, decoder="pyav") as reader:
            video = reader.info()
    except (NemoVfmError, OSError, ValueError, ArithmeticError) as error:
        return {**file, "why": str(error)}
    if video.missing_frames:
        warn(f"{path} {video.why_incomplete()}; what can be decoded is used")
    first, stop = video.longest_part()
    known = {**file, "width": video.width, "height": video.height, "num_frames": stop - first, "fps": video.fps}
    return {**known, "has_holes": True} if video.holes else known


def _read_index(index: Path | None) -> dict[str, Facts]:
    """What an earlier start found; nothing where the file is absent, damaged or of another version."""
    if index is None or not index.is_file():
        return {}
    try:
        if index.stat().st_size > _MAX_INDEX_BYTES:
            raise ValueError(f"it has more than {_MAX_INDEX_BYTES:,} bytes")
        content = json.loads(index.read_bytes())
        if content["schema"] != FACTS_SCHEMA:
            raise ValueError(f"its schema is {content['schema']!r}")
        found: dict[str, Facts] = {}
        for name, facts in content["files"].items():
            if not isinstance(facts, dict) or any(type(facts.get(one)) is not int for one in ("size", "mtime_ns")):
                continue
            numbers = [facts.get(one) for one in ("width", "height", "num_frames", "fps")]
            if isinstance(facts.get("why"), str) or all(isinstance(n, int | float) and 0 < n < 1e9 for n in numbers):
                found[name] = facts
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        warn(f"{index} is ignored ({error}); all files are examined again")
        return {}
