"""Tabulates how many clips each bucket took, and why others fitted none."""

from collections.abc import Iterator, Mapping

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import figure, number, one_line, words
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section, fragment

ORDER = 40
TITLES = {"by_bucket": "bucket", "unbinned": "no bucket fits", "failed": "failed"}
INTERNAL = frozenset({"schema", "made_of"})
_TABLES = """
{% for group in groups %}
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">{{ group.title }}</th><th scope="col" class="n">clips</th><th scope="col"></th></tr></thead>
<tbody>
{% for name, value, share in group.rows %}
<tr><th scope="row">{{ name }}</th><td class="n">{{ value }}</td>
<td class="wide"><span class="track">
<span class="bar tone-{{ group.tone }}" style="width:{{ share }}%"></span></span></td></tr>
{% endfor %}
</tbody></table></div>
{% endfor %}
{% if facts %}
<dl class="facts">
{% for name, value in facts %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
{% endif %}
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step that encoded clips."""
    for step, encoded in run.each("encode.json"):
        tables = {str(key): value for key, value in encoded.items() if isinstance(value, Mapping) and value}
        counts = {key: table for key, table in tables.items() if all(number(n) is not None for n in table.values())}
        most = max((float(n) for value in counts.values() for n in value.values()), default=1.0) or 1.0
        groups = []
        for key, table in counts.items():
            shares = {name: round(100 * max(float(value), 0.0) / abs(most), 1) for name, value in table.items()}
            rows = [(str(name), figure(number(value)), shares[name]) for name, value in table.items()]
            tone = {"unbinned": "dropped", "failed": "failed"}.get(key, "kept")
            groups.append({"title": TITLES.get(key, words(key)), "rows": rows, "tone": tone})
        rest = {key: value for key, value in encoded.items() if key not in counts and key not in INTERNAL}
        facts = [(words(key), one_line(value)) for key, value in rest.items() if value not in ({}, [], "")]
        body = fragment(_TABLES, {"groups": groups, "facts": facts})
        yield Section(
            "Encoded clips", body, "Kept clips by target bucket.", step.name,
            folded=True,
        )  # fmt: skip
