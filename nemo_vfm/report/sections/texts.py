"""Shows a language model's texts at rising training steps, one row for each beginning."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, as_sequence, clean
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section, fragment
from nemo_vfm.report.sections.contact_sheet import spread

ORDER = 6
MAX_SHOWN, NUM_OPEN, MAX_PROMPTS, MAX_LETTERS = 3, 3, 12, 900
_BODY = """
{% macro shown(rows) %}
<div class="texts">{% for row in rows %}
<article class="prompt"><h3>{{ row.prompt or "(no prompt)" }}</h3>{% for name, text, wrong in row.texts %}
<figure><figcaption>{{ name }}</figcaption><blockquote>{{ text }}</blockquote>{% if wrong is not none %}
<p>{% if wrong %}<span class="mark wrong">✗</span> {{ wrong }}
{%- else %}<span class="mark right">✓</span> consistent{% endif %}</p>{% endif %}</figure>{% endfor %}
</article>{% endfor %}
</div>
{% endmacro %}
{{ shown(open) }}
{% if more %}
<details><summary>{{ more | length }} more</summary>{{ shown(more) }}</details>
{% endif %}"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One a step that wrote texts while it trained: the first ones, some between, and the last."""
    for step in run.steps:
        names = (
            (re.fullmatch(r"step-(\d{1,12})", path.stem), path) for path in (step.folder / "samples").glob("*.json")
        )
        if found := {int(match[1]): path for match, path in names if match}:
            by_step = {}
            for place in spread(sorted(found), MAX_SHOWN):
                texts = map(as_mapping, as_sequence(as_mapping(run.read_json(found[place]) or {}).get("texts")))
                by_step[f"{place:,}"] = [
                    {name: clean(str(one.get(name, "")), MAX_LETTERS) for name in ("prompt", "text")} for one in texts
                ]
            prompts = dict.fromkeys(one["prompt"] for texts in by_step.values() for one in texts)
            rows = [
                {"prompt": prompt, "texts": [(f"step {at}", one["text"], None) for at, texts in by_step.items()
                                             for one in texts if one["prompt"] == prompt]}
                for prompt in prompts
            ]  # fmt: skip
            if len(rows) > MAX_PROMPTS:
                run.note(f"The first {MAX_PROMPTS} of {len(rows)} prompts are shown.")
            body = side_by_side(rows[:MAX_PROMPTS])
            lead = "Continuations of the same prompts with the same random numbers, as training progressed."
            yield Section("Texts during training", body, lead, step.name)


def side_by_side(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Prompts, each over its texts (name, text, what is wrong with it or None); those beyond the first are folded."""
    return fragment(_BODY, {"open": rows[:NUM_OPEN], "more": rows[NUM_OPEN:]})
