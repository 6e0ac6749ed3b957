"""Prints the report of a clip, and writes a sheet of its pictures."""

import json
import os
import sys
from pathlib import Path

from nemo_vfm.config.recipe_errors import UNSEEN, printable
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.decide.score_table import read_table
from nemo_vfm.explain.clip.clip_locations import Bytes, sheet_frames, thumbnail_frames
from nemo_vfm.explain.clip.clip_report import ClipReport, RuleResult, SimilarClip, tell
from nemo_vfm.explain.clip.curation_folder import Curation, curation_folder
from nemo_vfm.explain.clip.find_clip import file_named, label, place_of, write_file
from nemo_vfm.explain.clip.rule_verdicts import Margin, RuleVerdict
from nemo_vfm.explain.shards.sample_pictures import blocks, write_sheet
from nemo_vfm.runtime.terminal import Terminal

_MAX_ALIKE = 8


def tell_of(run: Path, clip: str | None, *, as_json: bool, out: Path | None) -> int:
    """Print what is known about a clip or a file, and write the sheet if one is requested."""
    folder = curation_folder(run)
    if folder is None:
        raise UserError(f"{run} is not a run folder of a curation: there is no scores.parquet in it or in its steps")
    if clip is not None and out is None and (row := file_named(folder, clip)) is not None:
        if as_json:
            _write_json(row)
        else:
            write_file(Terminal(), row)
        return 0
    table, others = read_table(folder / "scores.parquet")
    if not len(table):
        raise UserError(f"{folder} has no clips: no file could be cut into any; its files.json says why")
    curation = Curation(folder, table, others)
    if clip is None:
        raise UserError(
            f"{run} is a run folder of {len(curation.table):,} clips: name one by its id, the start of its id, "
            f"FILE:FRAME, FILE@SECONDS, or a file, such as nemo-vfm explain {run} {label(curation, 0).split()[0]}"
        )
    story, opened, latents = tell(curation, place_of(curation, clip))
    if out is not None:  # first, since a reader of the rest may stop early, such as `| head`
        shown = sheet_frames(curation, story.clip_id, opened, latents)
        if not shown:
            raise UserError(f"there is nothing to show in {out}: there are no thumbnails, video or latents")
        write_sheet(out, shown)
    if as_json:
        _write_json(story.to_json())
        return 0
    write(Terminal(), story)
    frames = thumbnail_frames(curation, story.clip_id)
    if frames and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        paper = Terminal()
        for line in ["", *blocks(frames, paper.width)]:
            paper.line(line)
    if out is not None:
        sys.stdout.write(f"{out}\n")
    return 0


def _write_json(value: Json) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text) + "\n")


def write(paper: Terminal, story: ClipReport) -> None:
    """Print the whole report as plain text."""
    paper.line(printable(story.clip_id, 90), "bold")
    paper.line(f"  {printable(story.source, 200)}")
    if story.fps:
        end_s, frames = story.start_s + story.duration_s, story.last_frame - story.first_frame
        paper.line(f"  frames {story.first_frame:,} to {story.last_frame - 1:,}, {story.start_s:.2f} to {end_s:.2f} s: "
                   f"{frames:,} frames, {story.duration_s:.2f} s")  # fmt: skip
        paper.line(f"  {story.width}x{story.height}, {story.fps:.4g} frames per second")
    else:
        paper.line(f"  an image, {story.width}x{story.height}")
    paper.line("\nDecision", "bold")
    paper.prose(_decision(story), 2)
    if story.duplicate_of is not None:
        paper.prose(f"like {_similar_clip_text(story.duplicate_of)}, which is kept", 2)
    if story.duplicates:
        paper.line(f"  {len(story.duplicates):,} were dropped as its duplicates:")
    for one in story.duplicates[:_MAX_ALIKE]:
        paper.line(f"    {_similar_clip_text(one)}")
    if len(story.duplicates) > _MAX_ALIKE:
        paper.line(f"    and {len(story.duplicates) - _MAX_ALIKE:,} more")
    if story.rules:
        paper.line("\nRules, in order", "bold")
        paper.table([row for verdict in story.rules for row in _rule(verdict)], {"drops": "red"})
    if story.scores:
        paper.line(f"\nScores, among {story.clips:,} clips", "bold")
        rows = [(f"  {printable(one.name, 60)}", _value(one.value), one.unit, _rank_text(one)) for one in story.scores]
        paper.table(rows, {})
    if story.restored:
        names, facts = story.restored.get("restored"), story.restored.get("facts")
        paper.line("\nMended", "bold")
        paper.line(f"  {', '.join(printable(str(name), 60) for name in names or ())}")
        for name, value in (facts if isinstance(facts, dict) else {}).items():
            paper.line(f"  {printable(str(name), 60)} {_value(value)}")
    paper.line("\nCaption", "bold")
    paper.prose(printable(story.caption, 10_000) or "none", 2)
    facts = {"caption_by": story.caption_by, **story.caption_facts}
    for name, value in facts.items():
        if value not in ("", None):
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            paper.prose(
                f"{printable(name.removeprefix('caption_').replace('_', ' '), 60)}: {printable(shown, 2000)}", 4
            )
    _write_bytes(paper, story)


def _decision(story: ClipReport) -> str:
    if story.message is not None:
        return f"failed: {printable(story.message, 500)}"
    if story.rule is None:
        return f"{printable(story.decision, 20)}: no rule drops it"
    known = any(verdict.rule == story.rule for verdict in story.rules)
    note = "" if known else ", which thins out oversized groups (balance.json)" if story.rule == "balance" else ""
    return f"{printable(story.decision, 20)} by the rule {printable(story.rule, 80)}{note}"


def _similar_clip_text(one: SimilarClip) -> str:
    likeness = "" if one.likeness is None else f", likeness {_figure(one.likeness)}"
    source = printable(one.source, 60)
    return (
        f"{printable(one.clip_id, 90)[:12]} ({source}, frames {one.first_frame:,} to {one.last_frame - 1:,}{likeness})"
    )


def _rule(verdict: RuleVerdict) -> list[tuple[str, ...]]:
    """A row, and one more for every further threshold."""
    text = f"{verdict.form}s {printable(verdict.text, 300)}" + (f" ({verdict.why})" if verdict.why else "")
    parts = [_margin(margin, verdict.says) for margin in verdict.margins]
    if len(parts) > 1:
        parts = [f"{printable(m.score, 30)} {words}" for m, words in zip(verdict.margins, parts, strict=True)]
    if not parts:
        parts = [", ".join(f"{printable(name, 30)} {_value(value)}" for name, value in verdict.values.items())]
    says = f"{verdict.says} <-" if verdict.decided else verdict.says
    first = (
        f"  {printable(verdict.rule, 40)}",
        says,
        printable(parts[0], 60),
        text,
    )  # the last column alone is wrapped
    return [first, *(("", "", more, "") for more in parts[1:])]


def _margin(margin: Margin, says: str) -> str:
    if margin.value is None or margin.by is None:
        return f"{printable(margin.score, 60)} was not measured"
    value = _figure(margin.value)
    if says == "not asked":
        return value
    if not margin.drops:
        return f"{value}, {_figure(margin.by)} to spare"
    if says != "drops":  # of comparisons: alike, and not asked or the one that stays
        return value
    side = "low" if margin.op == "<" else "high"
    spares = "" if margin.spares_at is None else f"; would pass at {margin.spares_at:,.6g}"
    return f"{value}, {_figure(margin.by)} too {side}{spares}"


def _rank_text(one: RuleResult) -> str:
    if one.value is None:
        return f"{one.among:,} others have one" if one.among else ""
    if one.equal == one.among:
        return "the only one" if one.among == 1 else f"all {one.among:,} are equal"
    if one.lower is None or one.percentile is None:
        return f"as {one.equal:,} of {one.among:,}"
    ties = f", as {one.equal:,} of {one.among:,}" if one.equal > 1 else f" of {one.among:,}"
    if one.lower == 0:
        return f"lowest{ties}"
    if one.lower + one.equal == one.among:
        return f"highest{ties}"
    return f"above {one.percentile:.0f} % of {one.among:,}"


def _write_bytes(paper: Terminal, story: ClipReport) -> None:
    paper.line("\nWhere it is", "bold")
    if story.bytes is None:
        paper.line("  in no shard" + ("" if story.decision == "kept" else ", since it is not kept"))
    else:
        _write_sample(paper, story.bytes)
    if story.bucket:
        paper.line(f"  bucket {printable(story.bucket, 300)}")
    for encoding in story.encodings if story.bytes is not None else ():
        paper.line(f"\nEncoded in {printable(encoding.step, 200)}", "bold")
        if encoding.codec:
            paper.line(f"  codec {printable(encoding.codec, 200)}")
        for sample in encoding.samples:
            _write_sample(paper, sample)
        if not encoding.samples:
            reasons = ", ".join(f"{count:,} {printable(why, 100)}" for why, count in encoding.left_out.items())
            paper.prose(f"nothing of it; clips that were left out there: {reasons or 'none'}", 2)


def _write_sample(paper: Terminal, sample: Bytes) -> None:
    paper.line(f"  {printable(f'{sample.folder}/{sample.shard}', 300)}, key {printable(sample.key, 100)}")
    rows, shape = [], sample.index.get("latent_shape")
    for name, (offset, size) in sample.members.items():
        has_shape = name.startswith("latents") and isinstance(shape, list)
        text = "x".join(map(str, shape)) if has_shape else ""
        rows.append((f"    {printable(name, 60)}", f"{size:>13,} bytes", f"at {offset:,}", text))
    paper.table(rows, {})


def _value(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _figure(float(value))
    return "-" if value is None else printable(str(value), 80)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"
