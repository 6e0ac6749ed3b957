"""Shows who wrote the captions, which failed, and some captions beside their frames."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, clean, exact, number
from nemo_vfm.report.parts.run_values import RunFolder, RunStep
from nemo_vfm.report.parts.section import Section, fragment

ORDER = 32
BUDGET_MB = 2.0
MAX_CLIPS, MAX_FAILURES, MAX_SHARDS = 10, 8, 8
_DESCRIPTION = "description"  # the `caption_by` of a sentence that was made of the clip's numbers
_FRAMES_BYTES = 20_000  # of a strip of four frames, about; kept free for each clip whose video does not fit
_BODY = """
<dl class="facts">
{% for name, value in facts %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
{% if failures %}
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">captioner</th><th scope="col">reason</th>
<th scope="col" class="n">count</th></tr></thead>
<tbody>
{% for who, why, count in failures %}
<tr><th scope="row">{{ who }}</th><td>{{ why }}</td><td class="n">{{ count }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
<div class="pairs">
{% for c in clips %}
<figure class="clip wide">{{ medium(c.medium, c.alt, "strip") }}
<figcaption><span class="caption">
{%- if c.stand_in %}<span class="quiet">{{ c.stand_in }}</span> {% endif %}{{ c.caption }}</span>
<span class="source">{{ c.source }}</span></figcaption></figure>
{% endfor %}
</div>
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step that wrote captions."""
    for step, values in run.each("captions.json"):
        by = as_mapping(values.get("by"))
        if by:
            clips = _clips(run, step, by, media)
            found = [
                (number(count) or 0.0, clean(str(who), 40), clean(str(why), 160))
                for who, reasons in as_mapping(values.get("failures")).items()
                for why, count in as_mapping(reasons).items()
            ]
            failures = [(who, why, exact(count)) for count, who, why in sorted(found, reverse=True)[:MAX_FAILURES]]
            names = {who: f"by {clean(str(who), 40)}" for who in by} | {_DESCRIPTION: "placeholders from numbers"}
            facts = [(names[who], exact(number(count) or 0)) for who, count in by.items()]
            if values.get("truncated"):
                facts.append(("cut at a limit", exact(number(values.get("truncated")) or 0)))
            for key, name in (("tokens_in", "tokens in"), ("tokens_out", "tokens out")):
                if count := number(values.get(key)):
                    facts.append((name, exact(count)))
            body = fragment(_BODY, {"facts": facts, "failures": failures, "clips": clips})
            lead = "Read a few: a wrong caption is worse than none."
            yield Section("Captions", body, lead, step.name, folded=True)


def stand_in(row: Mapping[str, Any], by: Mapping[str, Any]) -> str:
    """What to say before a row's text where it is no caption but made of the clip's numbers; else nothing.

    Args:
        by: how many texts each captioner wrote; a dropped clip's row does not tell whose its text is.
    """
    no_captions = _DESCRIPTION in by and set(by) <= {_DESCRIPTION, "nobody"}
    who = row.get("caption_by") or (_DESCRIPTION if no_captions else "")
    return "placeholder:" if row.get("caption") and who == _DESCRIPTION else ""


def _clips(run: RunFolder, step: RunStep, by: Mapping[str, Any], media: SectionMedia) -> list[dict[str, Any]]:
    """Kept clips with a caption, spread over the table, each as its video or as frames of it."""
    if not (step.folder / "scores.parquet").is_file():
        return []
    rows = run.read_rows(step.folder / "scores.parquet")
    values = [row for row in rows if row.get("decision") == "kept" and row.get("caption")]
    stride = max(1, len(values) // MAX_CLIPS)
    videos: dict[str, tuple[Path, Any]] = {}  # where each clip lies: a tar, and offset and size of its mp4
    for index in sorted((step.folder / "shards").glob("shard-*.json"))[:MAX_SHARDS]:
        samples = as_mapping(run.read_json(index)).get("samples")
        for sample in map(as_mapping, samples if isinstance(samples, list) else ()):
            videos[str(sample.get("key"))] = index.with_suffix(".tar"), as_mapping(sample.get("members")).get("mp4")
    clips = []
    for row in values[::stride][:MAX_CLIPS]:
        clip_id, video = str(row.get("clip_id")), None
        lies: tuple[Path | None, Any] = videos.get(clip_id, (None, None))
        tar, span = lies
        is_span = isinstance(span, list) and len(span) == 2 and all(isinstance(number, int) for number in span)
        # The clip itself where there is room for it beside the others' frames, else frames of it.
        if tar and is_span and span[1] + MAX_CLIPS * _FRAMES_BYTES <= media.budget_bytes - media.used_bytes:
            video = media.embed_member(tar, *span)
        clips.append({
            "medium": video or media.embed(step.folder / "thumbnails" / f"{clip_id}.jpg"), "alt": "the clip",
            "caption": clean(str(row["caption"]), 600), "stand_in": stand_in(row, by),
            "source": clean(str(row.get("source")), 80),
        })  # fmt: skip
    return clips
