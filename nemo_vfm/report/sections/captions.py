# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""captions.json and scores.parquet in; who wrote captions, what failed, and some beside their frames, out."""

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_vfm.report.folder import RunFolder, Step
from nemo_vfm.report.media import Media
from nemo_vfm.report.section import Section, fragment
from nemo_vfm.report.text import clean, exact, mapping, number

ORDER = 32
BUDGET_MB = 2.0
MAX_CLIPS, MAX_FAILURES = 10, 8

_BODY = """
<dl class="facts">
{% for name, value in facts %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
{% if failures %}
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">captioner</th><th scope="col">failed because</th>
<th scope="col" class="n">times</th></tr></thead>
<tbody>
{% for who, why, count in failures %}
<tr><th scope="row">{{ who }}</th><td>{{ why }}</td><td class="n">{{ count }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
<div class="pairs">
{% for c in clips %}
<figure class="clip wide">{{ medium(c.medium, c.alt, "strip") }}
<figcaption><span class="caption">{{ c.caption }}</span><span class="source">{{ c.source }}</span></figcaption></figure>
{% endfor %}
</div>
"""


def sections(run: RunFolder, media: Media) -> Iterator[Section]:
    """One section a step that wrote captions."""
    for step, told in run.each("captions.json"):
        by = mapping(told.get("by"))
        if by:
            clips = _clips(run, step, media)
            body = fragment(_BODY, {"facts": _facts(told, by), "failures": _failures(told), "clips": clips})
            lead = "Read some: a caption that speaks of another picture is worse than none."
            yield Section("Captions", body, lead, step.name, folded=True)


def _facts(told: Mapping[str, Any], by: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [(f"by {clean(str(who), 40)}", exact(number(count) or 0)) for who, count in by.items()]
    tokens = [(name, number(told.get(key))) for key, name in (("tokens_in", "tokens in"), ("tokens_out", "tokens out"))]
    return facts + [(name, exact(count)) for name, count in tokens if count]


def _failures(told: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    found = [
        (number(count) or 0.0, clean(str(who), 40), clean(str(why), 160))
        for who, reasons in mapping(told.get("failures")).items()
        for why, count in mapping(reasons).items()
    ]
    return [(who, why, exact(count)) for count, who, why in sorted(found, reverse=True)[:MAX_FAILURES]]


def _clips(run: RunFolder, step: Step, media: Media) -> list[dict[str, Any]]:
    """Kept clips with a caption, spread over the table, each with its frames."""
    if not (step.folder / "scores.parquet").is_file():
        return []
    rows = run.read_rows(step.folder / "scores.parquet")
    told = [row for row in rows if row.get("decision") == "kept" and row.get("caption")]
    stride = max(1, len(told) // MAX_CLIPS)
    return [
        {
            "medium": media.embed(step.folder / "thumbnails" / f"{row.get('clip_id')}.jpg"),
            "alt": "four frames of the clip", "caption": clean(str(row["caption"]), 600),
            "source": clean(str(row.get("source")), 80),
        }
        for row in told[::stride][:MAX_CLIPS]
    ]  # fmt: skip
