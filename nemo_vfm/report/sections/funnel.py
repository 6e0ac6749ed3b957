"""Draws ledger.json as a funnel, from input to kept: of files, clips and seconds, of rows and requests, or of rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, as_sequence, clean, exact, figure, number, span, words
from nemo_vfm.report.parts.run_values import RunFolder, RunStep
from nemo_vfm.report.parts.section import Card, Section, fragment

ORDER = 10
MEASURES = ("files", "clips", "images", "seconds", "rows", "requests")
MAX_FAILURES, MAX_NAMES = 12, 20
Spans = Mapping[str, tuple[float, float]]  # by measure: where a bar begins, and how long it is
_TABLE = """
<div class="scroll"><table class="funnel">
<thead><tr><th scope="col"></th>
{% for measure in measures %}
<th scope="col">{{ measure }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in rows %}
<tr class="{{ row.kind }}"><th scope="row">{{ row.name }}{% if row.files %}
<details><summary>{{ row.named }}</summary><ul>
{% for file in row.files %}
<li>{{ file }}</li>
{% endfor %}
{% if row.more %}
<li>and {{ row.more }} more</li>
{% endif %}
</ul></details>
{% endif %}
</th>
{% for cell in row.cells %}
<td><span class="amount{{ " quiet" if cell.text == "–" }}">{{ cell.text }}</span>
<span class="track stacked"><span class="bar left" style="width:{{ cell.start }}%"></span>
{% if cell.width %}
<span class="bar tone-{{ row.tone }}" style="width:{{ cell.width }}%"></span>
{% endif %}
</span></td>
{% endfor %}
</tr>
{% endfor %}
</tbody></table></div>
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One funnel a ledger."""
    for step, ledger in run.each("ledger.json"):
        measures = [measure for measure in MEASURES if as_mapping(ledger.get(measure))]
        parts = {measure: as_mapping(ledger[measure]) for measure in measures}
        for measure, part in parts.items():
            out = _amount(part, "kept") + sum(_counts(part, "dropped").values()) + sum(_counts(part, "failed").values())
            slack = 1e-6 * max(_amount(part, "in"), 1.0) + (0.01 if measure == "seconds" else 0)
            if abs(out - _amount(part, "in")) > slack:  # the promise in = kept + dropped + failed, looked at once more
                run.note(f"The {measure} do not add up: {exact(_amount(part, 'in'))} in, {exact(out)} accounted for.")
        rows = [
            _row("in", "total", "in", {m: (0.0, _amount(p, "in")) for m, p in parts.items()}, parts),
            *_removed_rows("dropped", parts, list(run.rules(step))),
            *_removed_rows("failed", parts, []),
            _row("kept", "total", "kept", {m: (0.0, _amount(p, "kept")) for m, p in parts.items()}, parts),
        ]
        named = _files(run, step)
        for row in rows:
            names = named.get(row["key"], [])
            row |= {"files": [clean(name, 160) for name in names[:MAX_NAMES]], "more": max(0, len(names) - MAX_NAMES),
                    "named": "1 file" if len(names) == 1 else f"{len(names):,} files"}  # fmt: skip
        body = fragment(_TABLE, {"measures": measures, "rows": rows})
        lead = "Input, what each rule dropped, and what was kept. The grey bar is what remains after each row."
        audio = as_mapping(ledger.get("audio"))
        as_what = {"copied": "with the source's sound", "flac": "with FLAC beside it"}
        sentences = [f"{exact(n)} {as_what.get(kind, kind)}" for kind, n in _counts(audio, "kept_as").items()]
        why = {"no_audio": "without, as the source has none", "audio_drop": "without (audio: drop)"}
        sentences += [f"{exact(n)} {why.get(name, name)}" for name, n in _counts(audio, "dropped").items()]
        sentences += [f"{exact(n)} failed: {clean(name, 160)}" for name, n in _counts(audio, "failed").items()]
        lead += f" Sound of the kept clips: {', '.join(sentences)}." if sentences else ""
        length = f", {span(_amount(parts['seconds'], 'kept'))}" if "seconds" in parts else ""
        cards = tuple(
            Card(f"{what} kept", figure(_amount(parts[what], "kept")), f"of {figure(_amount(parts[what], 'in'))}{more}")
            for what, more in (("clips", length), ("images", ""))
            if what in parts and (what == "images" or _amount(parts[what], "in") or "images" not in parts)
        )
        title = "From rows to samples" if "rows" in parts else "From files to clips"
        yield Section("From candidates to rows" if "requests" in parts else title, body, lead, step.name, cards)


def _files(run: RunFolder, step: RunStep) -> dict[tuple[str, str], list[str]]:
    """The names of files by what became of them: each failure, and what drops whole files without a look at clips."""
    found: dict[tuple[str, str], list[str]] = {}
    rows = run.read_json(step.folder / "files.json") if (step.folder / "files.json").is_file() else None
    for row in map(as_mapping, as_sequence(rows)):
        name, reason = str(row.get("file")), str(row.get("reason"))
        for kind in as_sequence(row.get("failures")):
            found.setdefault(("failed", str(kind)), []).append(name)
        if row.get("decision") == "dropped" and not row.get("clips"):
            original = row.get("duplicate_of")
            found.setdefault(("dropped", reason), []).append(f"{name} = {original}" if original else name)
    return found


def _amount(part: Mapping[str, Any], key: str) -> float:
    return number(part.get(key)) or 0.0


def _counts(part: Mapping[str, Any], key: str) -> dict[str, float]:
    return {str(name): number(count) or 0.0 for name, count in as_mapping(part.get(key)).items()}


def _removed_rows(key: str, parts: Mapping[str, Mapping[str, Any]], order: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each rule (or message), its bar beginning where what remains ends; those in `order` come last."""
    left = {measure: _amount(part, "in") for measure, part in parts.items()}
    if key == "failed":
        left = {measure: left[measure] - sum(_counts(part, "dropped").values()) for measure, part in parts.items()}
    found = dict.fromkeys(name for part in parts.values() for name in _counts(part, key))
    names = sorted(found, key=lambda name: order.index(name) if name in order else -1)
    rows = []
    for name in names[:MAX_FAILURES]:
        spans = {}
        for measure, part in parts.items():
            count = _counts(part, key).get(name, 0.0)
            left[measure] -= count
            spans[measure] = (left[measure], count)
        rows.append(_row(words(name) if key == "dropped" else name, key, key, spans, parts) | {"key": (key, name)})
    if rest := names[MAX_FAILURES:]:
        more = {m: sum(_counts(p, key).get(name, 0.0) for name in rest) for m, p in parts.items()}
        spans = {m: (left[m] - count, count) for m, count in more.items()}
        rows.append(_row(f"{len(rest)} more reasons", key, key, spans, parts))
    return rows


def _row(name: str, kind: str, tone: str, spans: Spans, parts: Mapping[str, Any]) -> dict[str, Any]:
    cells = []
    for measure, (start, length) in spans.items():
        whole = _amount(parts[measure], "in") or 1.0
        shown = {"start": _percent(start / whole), "width": _percent(length / whole)}
        sign = "−" if kind in ("dropped", "failed") else ""
        cells.append({"text": f"{sign}{exact(length)}" if length or kind == "total" else "–", **shown})
    return {"name": ("failed: " if kind == "failed" else "") + name, "kind": kind, "tone": tone, "cells": cells,
            "key": ("", "")}  # fmt: skip


def _percent(share: float) -> float:
    return round(100 * min(max(share, 0.0), 1.0), 2)
