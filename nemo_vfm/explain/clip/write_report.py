"""Prints the report of a clip, and writes a contact sheet of its frames."""

import json
import os
import sys
from pathlib import Path

from nemo_vfm.config.recipe_errors import UNSEEN, printable
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.decide.score_table import read_table
from nemo_vfm.explain.clip.clip_locations import Bytes, sheet_frames, thumbnail_frames
from nemo_vfm.explain.clip.clip_report import ClipReport, RuleResult, SimilarClip, make_report
from nemo_vfm.explain.clip.curation_folder import Curation, curation_folder
from nemo_vfm.explain.clip.find_clip import file_named, label, place_of, write_file
from nemo_vfm.explain.clip.rule_verdicts import Margin, RuleVerdict
from nemo_vfm.explain.shards.sample_pictures import blocks, write_sheet
from nemo_vfm.runtime.terminal import Terminal

_MAX_DUPLICATES = 8


def explain_clip(run: Path, clip: str | None, *, as_json: bool, out: Path | None) -> int:
    """Print what is known about a clip or a file, and write the sheet to `out` if that is given.

    Raises:
        UserError: `run` is no run folder of a curation, or has no such clip; the message shows how to name one.
    """
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
    report, opened, latents = make_report(curation, place_of(curation, clip))
    if out is not None:  # first, since whoever reads the output may stop early, such as `| head`
        frames = sheet_frames(curation, report.clip_id, opened, latents)
        if not frames:
            raise UserError(f"there is nothing to show in {out}: there are no thumbnails, video or latents")
        write_sheet(out, frames)
    if as_json:
        _write_json(report.to_json())
        return 0
    terminal = Terminal()
    write(terminal, report)
    thumbnails = thumbnail_frames(curation, report.clip_id)
    if thumbnails and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        for line in ["", *blocks(thumbnails, terminal.width)]:
            terminal.line(line)
    if out is not None:
        sys.stdout.write(f"{out}\n")
    return 0


def _write_json(value: Json) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text) + "\n")


def write(terminal: Terminal, report: ClipReport) -> None:
    """Print the whole report as plain text."""
    terminal.line(printable(report.clip_id, 90), "bold")
    terminal.line(f"  {printable(report.source, 200)}")
    if report.fps:
        end_s, frames = report.start_s + report.duration_s, report.last_frame - report.first_frame
        span = f"frames {report.first_frame:,} to {report.last_frame - 1:,}, {report.start_s:.2f} to {end_s:.2f} s"
        terminal.line(f"  {span}: {frames:,} frames, {report.duration_s:.2f} s")
        terminal.line(f"  {report.width}x{report.height}, {report.fps:.4g} frames per second")
    else:
        terminal.line(f"  an image, {report.width}x{report.height}")
    terminal.line("\nDecision", "bold")
    terminal.prose(_decision(report), 2)
    if report.duplicate_of is not None:
        terminal.prose(f"like {_similar(report.duplicate_of)}, which is kept", 2)
    if report.duplicates:
        terminal.line(f"  {len(report.duplicates):,} were dropped as its duplicates:")
    for one in report.duplicates[:_MAX_DUPLICATES]:
        terminal.line(f"    {_similar(one)}")
    if len(report.duplicates) > _MAX_DUPLICATES:
        terminal.line(f"    and {len(report.duplicates) - _MAX_DUPLICATES:,} more")
    if report.rules:
        terminal.line("\nRules, in order", "bold")
        terminal.table([row for verdict in report.rules for row in _rule_rows(verdict)], {"drops": "red"})
    if report.scores:
        terminal.line(f"\nScores, among {report.clips:,} clips", "bold")
        rows = [(f"  {printable(one.name, 60)}", _value(one.value), one.unit, _rank_text(one)) for one in report.scores]
        terminal.table(rows, {})
    if report.restored:
        names, facts = report.restored.get("restored"), report.restored.get("facts")
        terminal.line("\nMended", "bold")
        terminal.line(f"  {', '.join(printable(str(name), 60) for name in names or ())}")
        for name, value in (facts if isinstance(facts, dict) else {}).items():
            terminal.line(f"  {printable(str(name), 60)} {_value(value)}")
    terminal.line("\nCaption", "bold")
    terminal.prose(printable(report.caption, 10_000) or "none", 2)
    facts = {"caption_by": report.caption_by, **report.caption_facts}
    for name, value in facts.items():
        if value not in ("", None):
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            title = name.removeprefix("caption_").replace("_", " ")
            terminal.prose(f"{printable(title, 60)}: {printable(shown, 2000)}", 4)
    _write_bytes(terminal, report)


def _decision(report: ClipReport) -> str:
    if report.message is not None:
        return f"failed: {printable(report.message, 500)}"
    if report.rule is None:
        return f"{printable(report.decision, 20)}: no rule drops it"
    known = any(verdict.rule == report.rule for verdict in report.rules)
    note = "" if known else ", which thins out oversized groups (balance.json)" if report.rule == "balance" else ""
    return f"{printable(report.decision, 20)} by the rule {printable(report.rule, 80)}{note}"


def _similar(one: SimilarClip) -> str:
    likeness = "" if one.likeness is None else f", likeness {_figure(one.likeness)}"
    frames = f"frames {one.first_frame:,} to {one.last_frame - 1:,}{likeness}"
    return f"{printable(one.clip_id, 90)[:12]} ({printable(one.source, 60)}, {frames})"


def _rule_rows(verdict: RuleVerdict) -> list[tuple[str, ...]]:
    """The rule's row of the table, and one more for every further threshold."""
    text = f"{verdict.form}s {printable(verdict.text, 300)}" + (f" ({verdict.why})" if verdict.why else "")
    parts = [_margin(margin, verdict.says) for margin in verdict.margins]
    if len(parts) > 1:
        parts = [f"{printable(m.score, 30)} {words}" for m, words in zip(verdict.margins, parts, strict=True)]
    if not parts:
        parts = [", ".join(f"{printable(name, 30)} {_value(value)}" for name, value in verdict.values.items())]
    says = f"{verdict.says} <-" if verdict.decided else verdict.says
    first = (f"  {printable(verdict.rule, 40)}", says, printable(parts[0], 60), text)  # only the last column wraps
    return [first, *(("", "", more, "") for more in parts[1:])]


def _margin(margin: Margin, says: str) -> str:
    if margin.value is None or margin.by is None:
        return f"{printable(margin.score, 60)} was not measured"
    value = _figure(margin.value)
    if says == "not asked":
        return value
    if not margin.drops:
        return f"{value}, {_figure(margin.by)} to spare"
    if says != "drops":  # a comparison: of two similar clips this one stays, or the rule was not asked
        return value
    side = "low" if margin.op == "<" else "high"
    spares = "" if margin.spares_at is None else f"; would pass at {margin.spares_at:,.6g}"
    return f"{value}, {_figure(margin.by)} too {side}{spares}"


def _rank_text(one: RuleResult) -> str:
    """Where a score stands among the other clips' scores."""
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


def _write_bytes(terminal: Terminal, report: ClipReport) -> None:
    terminal.line("\nWhere it is", "bold")
    if report.bytes is None:
        terminal.line("  in no shard" + ("" if report.decision == "kept" else ", since it is not kept"))
    else:
        _write_sample(terminal, report.bytes)
    if report.bucket:
        terminal.line(f"  bucket {printable(report.bucket, 300)}")
    for encoding in report.encodings if report.bytes is not None else ():
        terminal.line(f"\nEncoded in {printable(encoding.step, 200)}", "bold")
        if encoding.codec:
            terminal.line(f"  codec {printable(encoding.codec, 200)}")
        for sample in encoding.samples:
            _write_sample(terminal, sample)
        if not encoding.samples:
            reasons = ", ".join(f"{count:,} {printable(why, 100)}" for why, count in encoding.left_out.items())
            terminal.prose(f"nothing of it; clips that were left out there: {reasons or 'none'}", 2)


def _write_sample(terminal: Terminal, sample: Bytes) -> None:
    terminal.line(f"  {printable(f'{sample.folder}/{sample.shard}', 300)}, key {printable(sample.key, 100)}")
    rows, shape = [], sample.index.get("latent_shape")
    for name, (offset, size) in sample.members.items():
        has_shape = name.startswith("latents") and isinstance(shape, list)
        text = "x".join(map(str, shape)) if has_shape else ""
        rows.append((f"    {printable(name, 60)}", f"{size:>13,} bytes", f"at {offset:,}", text))
    terminal.table(rows, {})


def _value(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _figure(float(value))
    return "-" if value is None else printable(str(value), 80)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"
