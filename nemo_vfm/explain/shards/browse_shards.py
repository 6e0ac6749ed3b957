"""Prints what shards hold, all of them or one sample, and writes a sheet of pictures."""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from nemo_vfm.config.recipe_errors import printable
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.uri import Place
from nemo_vfm.data.shards.shard_paths import named_shards
from nemo_vfm.explain.shards.sample_pictures import SheetPicture, blocks, first_frames, frames_of, write_sheet
from nemo_vfm.explain.shards.shard_summary import Bin, One, Summary, describe, entry_of, summarise
from nemo_vfm.runtime.terminal import Terminal

_MAX_LISTED = 12
_FRAMES, _SAMPLES = 8, 16


def browse(where: Place, key: str | None, *, as_json: bool, out: Path | None) -> int:
    """Print what shards hold, or one sample of them, and write the sheet where one is asked for."""
    try:
        samples = named_shards([where], None)
    except ValueError as error:  # braces
        raise UserError(str(error)) from error
    page = summarise(samples) if key is None else describe(samples, entry_of(samples.entries, key))
    draws = sys.stdout.isatty() and not as_json and not os.environ.get("NO_COLOR")
    frames: list[SheetPicture] = []
    if out is not None or draws:
        with suppress(DataError):  # what is damaged is listed with the members
            frames = (first_frames(samples, _SAMPLES) if isinstance(page, Summary)
                      else frames_of(samples, entry_of(samples.entries, page.key), _FRAMES))  # fmt: skip
    if out is not None:
        if not frames:
            raise UserError(f"there is nothing to show in {out}: no video, image or latents can be shown")
        write_sheet(out, frames)  # first, since a reader of the rest may stop early, such as `| head`
    if as_json:
        sys.stdout.write(json.dumps(asdict(page), indent=1, ensure_ascii=False) + "\n")
    elif isinstance(page, Summary):
        _write_summary(Terminal(), str(where), page)
    else:
        _write_one(Terminal(), page)
    if draws and frames:
        paper = Terminal()
        paper.line()
        for line in blocks(frames, paper.width):
            paper.line(line)
    if out is not None and not as_json:
        sys.stdout.write(f"{out}\n")
    return 0


def _write_summary(paper: Terminal, shards_named: str, page: Summary) -> None:
    paper.line(printable(shards_named, 1000), "bold")
    clips = f" of {page.clips:,} clips" if page.clips != page.samples else ""
    size = sum(member.total for member in page.members.values())
    samples, shards = ("" if count == 1 else "s" for count in (page.samples, page.shards))
    there = f"{page.samples:,} sample{samples}{clips} in {page.shards:,} shard{shards}"
    paper.line(f"  {there}, {size:,.0f} bytes of members")
    paper.line("\nMembers", "bold")
    paper.line(f"  {'':<24} {'samples':>9}  {'bytes':>16}  {'smallest':>14} {'median':>14} {'largest':>14}")
    for member, found in page.members.items():
        sizes = f"{found.smallest:>14,.0f} {found.median:>14,.0f} {found.largest:>14,.0f}"
        paper.line(f"  {printable(member, 24):<24} {found.count:>9,}  {found.total:>16,.0f}  {sizes}")
    if page.looked_into < page.samples:
        paper.line()
        paper.prose(f"The rest describes the first {page.looked_into:,} samples, whose index lacks details.")
    for title, counts in (("Buckets", page.buckets), ("Sizes", page.sizes), ("Latents", page.latent_shapes),
                          ("Frames per second", page.fps)):  # fmt: skip
        if counts:
            paper.line(f"\n{title}", "bold")
        for name, count in list(counts.items())[:_MAX_LISTED]:
            paper.line(f"  {printable(name, 40):<24} {count:>9,}")
        if len(counts) > _MAX_LISTED:
            paper.line(f"  and {len(counts) - _MAX_LISTED:,} more")
    _write_bins(paper, "Seconds", page.duration_s, ".2f")
    _write_bins(paper, "Words in a caption", page.caption_words, ".0f")
    for count, what in ((page.without_caption, "have no caption"), (page.unknown, "do not say their frame rate")):
        if count:
            paper.line(f"\n{count:,} samples {what}")


def _write_bins(paper: Terminal, title: str, bins: Sequence[Bin], style: str) -> None:
    if not bins:
        return
    paper.line(f"\n{title}", "bold")
    most = max(bar.count for bar in bins)
    for bar in bins:
        span = f"{bar.low:{style}} to {bar.high:{style}}" if bar.low != bar.high else f"{bar.low:{style}}"
        paper.line(f"  {span:<24} {bar.count:>9,}  {'#' * -(-24 * bar.count // most)}".rstrip())


def _write_one(paper: Terminal, one: One) -> None:
    paper.line(one.key, "bold")
    paper.line(f"  in {one.shard}")
    if one.caption:
        paper.prose(printable(one.caption, 10_000), 2)
    paper.line("\nMembers", "bold")
    rows = [(f"  {printable(name, 40)}", f"{size:>13,} bytes", f"at {offset:,}", one.films.get(name, ""))
            for name, (offset, size) in one.members.items()]  # fmt: skip
    paper.table(rows, {})
    if one.tensors:
        paper.line("\nTensors", "bold")
        rows = []
        for tensor in one.tensors:
            figures = (f"{tensor.smallest:.4g} to {tensor.largest:.4g}, mean {tensor.mean:.4g}, deviation "
                       f"{tensor.deviation:.4g}")  # fmt: skip
            bad = f", {tensor.not_finite:,} not finite" if tensor.not_finite else ""
            shape = "x".join(map(str, tensor.shape)) or "a number"
            rows.append((f"  {printable(tensor.name or tensor.member, 40)}", tensor.dtype, shape, figures + bad))
        paper.table(rows, {})
    paper.line("\nNumbers and texts", "bold")
    text = json.dumps(one.facts, indent=2, ensure_ascii=False)
    for line in text.splitlines()[:200]:
        paper.line(f"  {printable(line, 1000)}")
    for name, reason in one.damaged.items():
        paper.line()
        paper.prose(f"{printable(name, 40)} cannot be read: {printable(reason, 400)}")
