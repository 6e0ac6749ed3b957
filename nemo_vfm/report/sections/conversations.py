"""Shows rows that a synthesis made: how many of how many, how they spread over topics, how different they are."""

from collections import Counter
from collections.abc import Iterator

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, as_sequence, clean, exact, number, one_line
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Card, Section, fragment

ORDER = 4
MAX_SHOWN, MAX_LETTERS, MAX_TOPICS = 6, 700, 12
_GRAM = 3
_BODY = """
<div class="texts">{% for row in rows %}
<article class="prompt"><h3>{{ row.place }}</h3>{% for role, text in row.messages %}
<figure style="grid-column:1/-1"><figcaption>{{ role }}</figcaption>
<blockquote style="white-space:pre-wrap">{{ text }}</blockquote></figure>
{% endfor %}
</article>{% endfor %}
</div>
{% if topics %}<h3>Topics</h3>
<div class="scroll"><table><thead><tr><th scope="col">topic</th><th scope="col">rows</th></tr></thead><tbody>
{% for name, count in topics %}<tr><th scope="row">{{ name }}</th><td>{{ count }}</td></tr>
{% endfor %}</tbody></table></div>{% endif %}
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step that made rows."""
    for step in run.steps_with("rows.jsonl"):
        if rows := run.read_lines(step.folder / "rows.jsonl"):
            if len(rows) > MAX_SHOWN:
                run.note(f"{MAX_SHOWN} of {len(rows):,} rows are shown, evenly spread.")
            shown = [rows[place * len(rows) // min(MAX_SHOWN, len(rows))] for place in range(min(MAX_SHOWN, len(rows)))]
            topics = Counter(clean(str(as_mapping(row.get("parents")).get("topic", ""))) for row in rows)
            topics.pop("", None)
            ledger = as_mapping(run.read_json(step.folder / "ledger.json"))
            on = f" on {exact(len(topics))} topics" if topics else ""
            lead = f"{exact(len(rows))} rows{on}. Distinct {_GRAM}-grams: the share of distinct ones."
            views = []
            for row in shown:
                parents = as_mapping(row.get("parents"))
                place = [str(parents[name]) for name in ("topic", "subtopic", "level") if parents.get(name)]
                turns = as_sequence(row.get("messages")) or as_sequence(row.get("prompt"))
                named = [(str(one.get("role")), one) for one in map(as_mapping, turns)]
                named += [
                    (side, one)
                    for side in ("chosen", "rejected")
                    for one in map(as_mapping, as_sequence(row.get(side)))
                ]
                messages = []
                for name, one in named:
                    calls = [one_line(as_mapping(call).get("function")) for call in as_sequence(one.get("tool_calls"))]
                    content = [str(one["content"])] if one.get("content") else []
                    messages.append((clean(name, 40), clean("\n".join(content + calls), MAX_LETTERS)))
                views.append({"place": clean(", ".join(place) or str(row.get("id", "")), 160), "messages": messages})
            values = {"rows": views, "topics": topics.most_common(MAX_TOPICS)}
            tried = number(as_mapping(ledger.get("rows")).get("in")) or 0.0
            of = f"of {exact(tried)} candidates" if tried else ""
            grams: Counter[tuple[str, ...]] = Counter()
            for row in rows:
                said = [*as_sequence(row.get("messages")), *as_sequence(row.get("chosen"))]
                for message in map(as_mapping, said):
                    if message.get("role") == "assistant":
                        words = str(message.get("content")).casefold().split()
                        grams.update(zip(*(words[n:] for n in range(_GRAM)), strict=False))
            distinct = Card(f"distinct {_GRAM}-grams", f"{len(grams) / max(1, grams.total()):.0%}", "of the answers")
            cards = Card("rows", exact(len(rows)), of), distinct
            yield Section("Conversations", fragment(_BODY, values), lead, step.name, cards)
