"""Reports what became of a source file and its clips, as text or JSON."""

from pathlib import Path

from nemo_vfm.config.recipe_errors import printable
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.decide.score_table import read_table
from nemo_vfm.explain.clip.curation_folder import read_plain
from nemo_vfm.runtime.terminal import Terminal

_MOST_CLIPS = 40


def file_named(folder: Path, word: str) -> Json:
    """The file's row of files.json and its clips, by its name or the end of it; None where no one file is meant."""
    rows = [row for row in read_plain(folder / "files.json", list) if isinstance(row, dict)]
    by_name = {str(row.get("file")): row for row in rows}
    close = [word] if word in by_name else [name for name in by_name if name.endswith(f"/{word}")]
    return {**by_name[close[0]], "of_clips": _clips(folder, close[0])} if len(close) == 1 else None


def _clips(folder: Path, file: str) -> list[Json]:
    _, others = read_table(folder / "scores.parquet")
    names = ("clip_id", "first_frame", "last_frame", "decision", "rule", "message")
    rows = zip(others["source"], *(others[name] for name in names), strict=True)
    return [dict(zip(names, row, strict=True)) for source, *row in rows if source == file]


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
    for clip in row["of_clips"][:_MOST_CLIPS]:
        why = clip["rule"] or clip["message"] or ""
        span = "" if row.get("kind") == "image" else f"frames {clip['first_frame']:,} to {clip['last_frame'] - 1:,}"
        paper.line(f"  {printable(clip['clip_id'], 90)[:12]}  {span}  {clip['decision']} {printable(why, 80)}".rstrip())
    if (more := len(row["of_clips"]) - _MOST_CLIPS) > 0:
        paper.line(f"  and {more:,} more clips")
