"""Finds the clip or the source file that a user named, and reports what became of the file."""

import re
from collections.abc import Sequence
from os.path import commonprefix
from pathlib import Path

import numpy as np

from nemo_vfm.config.recipe_errors import did_you_mean, printable
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.decide.score_table import read_table
from nemo_vfm.explain.clip.curation_folder import Curation, read_plain
from nemo_vfm.runtime.terminal import Terminal

_LEAST, _SHOWN = 6, 5
_FRAME = re.compile(r"(.+):(\d{1,12})", re.DOTALL)
_SECONDS = re.compile(r"(.+)@(\d{1,9}(?:\.\d{1,9})?)", re.DOTALL)
_MAX_CLIPS = 40


def place_of(curation: Curation, word: str) -> int:
    """The clip of that id, the only one whose id begins so, or the one that holds FILE:FRAME or FILE@SECONDS."""
    ids = curation.texts("clip_id")
    if word in ids:
        return ids.index(word)
    for pattern in (_FRAME, _SECONDS):
        if match := pattern.fullmatch(word):
            return _in_file(curation, match[1], match[2], seconds=pattern is _SECONDS)
    found = [place for place, clip in enumerate(ids) if clip.startswith(word)]
    if found and len(word) < _LEAST:
        raise UserError(f"{printable(word, 40)} is too short for a clip's id: give at least {_LEAST} characters of it")
    if not found:
        # An id is often copied with a letter too few or too many at its end.
        shared = [len(commonprefix((word, clip))) for clip in ids]  # noqa: RUF071 - letters are meant, no folders
        hint = f"; did you mean {ids[shared.index(max(shared))][:12]}?" if max(shared) >= 4 else ""
        hint = hint or did_you_mean(word, ids) or f"; give an id such as {ids[0][:12]}, FILE:FRAME or FILE@SECONDS"
        raise UserError(f"there is no clip {printable(word, 80)} among {len(ids):,}{hint}")
    return _only(curation, found, f"begin with {printable(word, 80)}")


def label(curation: Curation, place: int) -> str:
    """A clip in a few words: the first characters of its id, its file and its frames."""
    first, last = curation.span(place)
    source = printable(curation.texts("source")[place], 60)
    return f"{printable(curation.texts('clip_id')[place], 90)[:12]} ({source}, frames {first:,} to {last - 1:,})"


def _only(curation: Curation, found: Sequence[int], what: str) -> int:
    if len(found) == 1:
        return found[0]
    shown = "".join(f"\n  {label(curation, place)}" for place in found[:_SHOWN])
    more = f"\n  and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    raise UserError(f"{len(found):,} clips {what}; name one by its id:{shown}{more}")


def _in_file(curation: Curation, file: str, at: str, *, seconds: bool) -> int:
    # The source that is meant: by its name, by the end of it, or by a path that ends in it.
    sources, shown = list(dict.fromkeys(curation.texts("source"))), printable(file, 80)
    close = [name for name in sources if name.endswith(f"/{file}") or file.endswith(f"/{name}")]
    close = [file] if file in sources else close
    if len(close) > 1:
        raise UserError(f"{len(close)} files end in {shown}, such as {printable(close[0], 80)}; give more of its path")
    if not close:
        for found in read_plain(curation.folder / "files.json", list):
            if isinstance(found, dict) and str(found.get("file")) == file and not found.get("clips"):
                raise UserError(f"{shown} gave no clip ({what_became(found)})")
        raise UserError(f"no clip comes from {shown}{did_you_mean(file, sources)}")
    source = close[0]
    places = [place for place, name in enumerate(curation.texts("source")) if name == source]
    spans = np.array([curation.span(place) for place in places])
    frame = int(spans[:, 1].max()) if seconds else int(at)
    begins_s = 0.0
    for place in sorted(places, key=curation.span) if seconds else ():
        # Clips follow each other without gaps, each at a rate of its own.
        (first, last), fps = curation.span(place), curation.number("fps", place) or 1.0
        lasts_s = curation.number("duration_s", place) or (last - first) / fps
        if float(at) < begins_s + lasts_s:
            frame = min(last - 1, first + int((float(at) - begins_s) * fps + 1e-6))
            break
        begins_s += lasts_s
    holding = [places[row] for row in np.flatnonzero((spans[:, 0] <= frame) & (frame < spans[:, 1]))]
    if holding:
        return _only(curation, holding, f"hold frame {frame:,} of {shown}")
    away = np.maximum(spans[:, 0] - frame, frame - spans[:, 1] + 1)
    raise UserError(
        f"no clip holds frame {frame:,} of {shown}, which has {len(places):,}; the nearest is "
        f"{label(curation, places[int(away.argmin())])}"
    )


def file_named(folder: Path, word: str) -> Json:
    """The file's row of files.json and its clips, by its name or the end of it; None where no one file is meant."""
    rows = [row for row in read_plain(folder / "files.json", list) if isinstance(row, dict)]
    by_name = {str(row.get("file")): row for row in rows}
    close = [word] if word in by_name else [name for name in by_name if name.endswith(f"/{word}")]
    if len(close) != 1:
        return None
    _, others = read_table(folder / "scores.parquet")
    names = ("clip_id", "first_frame", "last_frame", "decision", "rule", "message")
    columns = zip(others["source"], *(others[name] for name in names), strict=True)
    clips = [dict(zip(names, values, strict=True)) for source, *values in columns if source == close[0]]
    return {**by_name[close[0]], "of_clips": clips}


def what_became(row: Json) -> str:
    """Kept, or dropped or failed and why, in one line."""
    original = row.get("duplicate_of")
    reason = f"exact duplicate of {original}" if original else row.get("reason")
    return printable(f"{row.get('decision')}{f': {reason}' if reason else ''}", 300)


def write_file(paper: Terminal, row: Json) -> None:
    """For a reader."""
    paper.line(printable(str(row["file"]), 200), "bold")
    paper.prose(what_became(row), 2)
    length = f"{float(row.get('seconds') or 0):,.2f} s, {row.get('clips')} clips, {row.get('clips_kept')} kept"
    paper.line(f"  {'an image' if row.get('kind') == 'image' else length}")
    if part := row.get("failed_in_part"):
        paper.prose(f"failed in part: {printable(str(part), 300)}", 2)
    for clip in row["of_clips"][:_MAX_CLIPS]:
        why = clip["rule"] or clip["message"] or ""
        span = "" if row.get("kind") == "image" else f"frames {clip['first_frame']:,} to {clip['last_frame'] - 1:,}"
        paper.line(f"  {printable(clip['clip_id'], 90)[:12]}  {span}  {clip['decision']} {printable(why, 80)}".rstrip())
    if (more := len(row["of_clips"]) - _MAX_CLIPS) > 0:
        paper.line(f"  and {more:,} more clips")
