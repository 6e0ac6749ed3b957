"""Shows contact sheets of kept clips, of those each rule dropped, and of duplicates in pairs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, as_sequence, clean, figure, number, words
from nemo_vfm.report.parts.run_values import RunFolder, RunStep
from nemo_vfm.report.parts.section import Section, fragment
from nemo_vfm.report.sections.captions import stand_in

ORDER = 30
BUDGET_MB = 3.0
Row = dict[str, Any]
MAX_KEPT, MAX_A_RULE, MAX_PAIRS, MAX_FAILED, MAX_STAGES = 6, 6, 6, 20, 12
MAX_LISTED = 2000  # lines, with links to the pictures in the run folder: the page itself has no room for all of these
_SHEETS = """
{% macro clip(c) %}
<figure class="clip">{{ medium(c.medium, c.alt, "strip") }}
<figcaption>
{% if c.fact %}
<span class="fact tone-{{ c.tone }}">{{ c.fact }}</span>
{% endif %}
{% if c.caption %}
<span class="caption">{% if c.stand_in %}<span class="quiet">{{ c.stand_in }}</span> {% endif %}{{ c.caption }}</span>
{% endif %}
<span class="source">{{ c.source }}{% if c.id %} · {{ c.id }}{% endif %}</span>
</figcaption></figure>
{% endmacro %}
{% macro sheet(clips) %}
<div class="sheet">
{% for c in clips %}
{{ clip(c) }}
{% endfor %}
</div>
{% endmacro %}
{% if kept %}
<h3>{{ kept.title }} <span class="count">{{ kept.count }}</span></h3>
{{ sheet(kept.clips) }}
{% endif %}
{% if listed %}
<details><summary>All kept clips <span class="count">{{ listed_count }}</span></summary>
<div class="scroll"><table class="listed">
<thead><tr><th scope="col">clip</th><th scope="col">source</th><th scope="col">caption</th></tr></thead>
<tbody>
{% for row in listed %}
<tr><td class="file">{% if row.link %}<a href="{{ row.link }}">{{ row.id }}</a>{% else %}{{ row.id }}{% endif %}</td>
<td>{{ row.source }}</td>
<td>{% if row.stand_in %}<span class="quiet">{{ row.stand_in }}</span> {% endif %}{{ row.caption }}</td></tr>
{% endfor %}
</tbody></table></div></details>
{% endif %}
{% for group in dropped %}
<details><summary>{{ group.title }} <span class="count">{{ group.count }}</span></summary>
{{ sheet(group.clips) }}
</details>
{% endfor %}
{% if pairs %}
<details><summary>Near duplicates <span class="count">{{ pairs_count }}</span></summary>
<div class="pairs">
{% for kept, gone in pairs %}
<div class="pair">{{ clip(kept) }}{{ clip(gone) }}</div>
{% endfor %}
</div></details>
{% endif %}
{% for group in nearest %}
<details><summary>{{ group.title }} <span class="count">{{ group.count }}</span></summary>
<div class="pairs">
{% for stays, goes in group.pairs %}
<div class="pair">{{ clip(stays) }}{{ clip(goes) }}</div>
{% endfor %}
</div></details>
{% endfor %}
{% if failed %}
<details><summary>Failed <span class="count">{{ failed_count }}</span></summary>
<div class="scroll"><table class="listed">
<thead><tr><th scope="col">source</th><th scope="col">what happened</th></tr></thead>
<tbody>
{% for row in failed %}
<tr><td>{{ row.source }}</td><td>{{ row.message }}</td></tr>
{% endfor %}
</tbody></table></div></details>
{% endif %}
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step that decided about clips."""
    for step in run.steps_with("scores.parquet"):
        rows = run.read_rows(step.folder / "scores.parquet")
        if rows:
            nearest = as_mapping(run.read_json(step.folder / "nearest_pairs.json"))
            by = as_mapping(as_mapping(run.read_json(step.folder / "captions.json")).get("by"))
            look = _Look(step, run.rules(step), by, media)
            kept = [row for row in rows if row.get("decision") == "kept"]
            dropped = [row for row in rows if row.get("decision") == "dropped"]
            failed = [row for row in rows if row.get("decision") == "failed"]
            by_id = {row.get("clip_id"): row for row in rows}
            # Pairs of (the clip that stayed, the clip that went as its duplicate).
            twins = [(by_id[row["duplicate_of"]], row) for row in dropped if row.get("duplicate_of") in by_id]
            paired = {id(row) for _, row in twins}
            sheets = []
            for rule in dict.fromkeys([*look.rules, *(str(row.get("rule")) for row in dropped)]):
                if group := [row for row in dropped if str(row.get("rule")) == rule and id(row) not in paired]:
                    sheets.append(look.sheet(f"Dropped: {words(clean(rule, 80))}", group, MAX_A_RULE))
            stages = [as_mapping(found) for found in list(nearest.values())[:MAX_STAGES]]
            values = {
                "kept": look.sheet("Kept", kept, MAX_KEPT) if kept else None,
                "listed": [look.line(row) for row in kept[:MAX_LISTED]] if len(kept) > MAX_KEPT else [],
                "listed_count": shown_of(MAX_LISTED, len(kept)),
                "dropped": sheets,
                "pairs": [(look.clip(a, "kept"), look.clip(b)) for a, b in spread(twins, MAX_PAIRS)],
                "pairs_count": shown_of(MAX_PAIRS, len(twins)),
                "nearest": [look.nearest(found, kept) for found in stages if as_sequence(found.get("pairs"))],
                "failed": [{"source": clean(str(row.get("source")), 80),
                            "message": clean(str(row.get("message") or "no message"), 300)}
                           for row in failed[:MAX_FAILED]],
                "failed_count": shown_of(MAX_FAILED, len(failed)),
            }  # fmt: skip
            lead = "Four frames of each clip, in order; images are shown whole. Large groups are sampled evenly. "
            lead += "Each clip's entry ends in the start of its id, for nemo-vfm explain RUN ID."
            yield Section("Contact sheets", fragment(_SHEETS, values), lead, step.name)


class _Look:
    def __init__(
        self, step: RunStep, rules: Mapping[str, Mapping[str, Any]], by: Mapping[str, Any], media: SectionMedia
    ) -> None:
        self._step, self.rules, self._by, self._media = step, rules, by, media

    def sheet(self, title: str, rows: Sequence[dict[str, Any]], at_most: int) -> dict[str, Any]:
        clips = [self.clip(row) for row in spread(rows, at_most)]
        return {"title": title, "count": shown_of(at_most, len(rows)), "clips": clips}

    def line(self, row: Mapping[str, Any]) -> dict[str, str]:
        """A clip in one line, with the way to its picture from the page, where there is one."""
        picture = self._step.folder / "thumbnails" / _file_name(row.get("clip_id"))
        link = f"./{quote(self._step.name or '.')}/thumbnails/{picture.name}" if picture.is_file() else ""
        return {"id": clean(str(row.get("clip_id") or ""), 100)[:8], "link": link, "source": _source(row),
                "caption": clean(str(row.get("caption") or ""), 160), "stand_in": stand_in(row, self._by)}  # fmt: skip

    def clip(self, row: Mapping[str, Any], fact: str = "") -> dict[str, Any]:
        caption = clean(str(row.get("caption") or ""), 160)
        rule = self.rules.get(str(row.get("rule")), {})
        score = str(rule.get("score"))
        value, limit = number(row.get(score)), number(rule.get("threshold"))
        if not fact and value is not None and limit is not None:  # the score that decided, against its threshold
            fact = f"{words(clean(score, 40))} {figure(value)} {clean(str(rule.get('op')), 2)} {figure(limit)}"
        elif not fact and row.get("decision") != "kept":
            fact = clean(str(row.get("message") or ""), 120) or words(clean(str(row.get("rule") or ""), 120))
        shown = "Image" if number(row.get("duration_s")) is None else "Four frames"
        return {
            "medium": self._media.embed(self._step.folder / "thumbnails" / _file_name(row.get("clip_id"))),
            "alt": f"{shown}: {caption or clean(str(row.get('source')), 80)}",
            "caption": caption,
            "stand_in": stand_in(row, self._by),
            "fact": fact,
            "tone": "kept" if row.get("decision") == "kept" else "dropped",
            "source": _source(row),
            "id": clean(str(row.get("clip_id") or ""), 100)[:8],
        }

    def nearest(self, found: Mapping[str, Any], kept: Sequence[Row]) -> dict[str, Any]:
        """Kept pairs of which a threshold below would drop the second clip, the most alike first."""
        by_id = {str(row.get("clip_id")): row for row in kept}
        column, limit = str(found.get("column")), number(found.get("above"))
        pairs = [as_mapping(pair) for pair in as_sequence(found.get("pairs"))]
        ids = [(str(pair.get("stays")), str(pair.get("goes")), figure(number(pair.get("likeness")))) for pair in pairs]
        known = [one for one in ids if one[0] in by_id and one[1] in by_id]
        against = "" if limit is None else f", below {figure(limit)}"
        shown = [
            (self.clip(by_id[stays], "kept"), self.clip(by_id[goes], f"{alike}{against}"))
            for stays, goes, alike in known[:MAX_PAIRS]
        ]
        name = words(clean(column, 60))
        title = f"Most similar kept clips by {name}: a lower threshold would drop the second of each pair"
        return {"title": title, "count": shown_of(MAX_PAIRS, len(known)), "pairs": shown}


def _file_name(clip_id: Any) -> str:
    """A clip's picture; an id that is not a plain name leads to a file that is not there."""
    name = str(clip_id)
    return f"{name}.jpg" if name.isalnum() and len(name) <= 64 else "no-such-name"


def _source(row: Mapping[str, Any]) -> str:
    has_length = number(row.get("duration_s")) is not None  # an image has none
    first, last = number(row.get("first_frame")), number(row.get("last_frame")) if has_length else None
    frames = f" · frames {first:.0f}–{last - 1:.0f}" if first is not None and last is not None else ""
    return clean(str(row.get("source") or ""), 80) + frames


def spread(items: Sequence[Any], at_most: int) -> list[Any]:
    """At most so many of the items, evenly, first and last among them."""
    if len(items) <= at_most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (at_most - 1))] for place in range(at_most)]


def shown_of(at_most: int, count: int) -> str:
    """How many there are and, where these are not all, how many are shown."""
    return f"{count:,}" if count <= at_most else f"{at_most} of {count:,}"
