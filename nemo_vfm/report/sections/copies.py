"""Shows the similarity above which clips were removed as copies, who chose it, and the cost of others."""

from collections.abc import Iterator
from itertools import pairwise

from nemo_vfm.report.parts.chart import ChartLine, line_chart
from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, as_sequence, clean, figure, number, words
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section, fragment

ORDER = 28
MAX_STAGES = 12
FROM = {
    "valley": "the valley between duplicates and others", "knee": "the knee of the curve", "given": "given",
}  # fmt: skip
_BODY = """
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">stage</th><th scope="col">compares by</th><th scope="col" class="n">drops above</th>
<th scope="col">set by</th><th scope="col">suggested</th></tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row">{{ row.name }}</th><td>{{ row.column }}</td><td class="n">{{ row.above }}</td>
<td>{{ row.how }}</td><td>{{ row.proposal }}</td></tr>
{% endfor %}
</tbody></table></div>
<div class="charts">{% for c in charts %}{{ c }}{% endfor %}</div>
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step that removed copies."""
    for step, note in run.each("similarity.json"):
        stages = [(str(name), as_mapping(found)) for name, found in note.items() if as_mapping(found)][:MAX_STAGES]
        if stages:
            charts, rows = [], []
            for name, found in stages:
                how, by = str(found.get("how")), str(found.get("proposed_by"))
                epsilon = number(found.get("proposed_epsilon"))
                suggested = f"{figure(1 - (epsilon or 0.0))}, {FROM.get(by, clean(by, 60))}"
                rows.append({
                    "name": words(clean(name, 60)), "column": words(clean(str(found.get("column")), 60)),
                    "above": figure(number(found.get("above"))), "how": FROM.get(how, clean(how, 60)),
                    "proposal": "none: no clear threshold" if by == "given" or epsilon is None else suggested,
                })  # fmt: skip
                pairs = [
                    (number(as_mapping(item).get("epsilon")), number(as_mapping(item).get("removed_percent")))
                    for item in as_sequence(found.get("removed"))
                ]
                points = sorted(
                    {1 - one: percent for one, percent in pairs if one is not None and percent is not None}.items()
                )
                if len(points) > 1:
                    lines = [ChartLine("percent of clips dropped", points, "dropped")]
                    # The place on the line at the threshold; none where it lies beyond what was tried.
                    above = number(found.get("above"))
                    for (x, y), (right, up) in pairwise(points):
                        if above is not None and x - 1e-9 <= above <= right + 1e-9:
                            lines.append(
                                ChartLine("now", [(above, y + (up - y) * (above - x) / (right - x))], "kept", "dots")
                            )
                            break
                    title = words(clean(name, 60))
                    charts.append(line_chart(title, lines, x_label="similarity threshold", zero=True))
            body = fragment(_BODY, {"rows": rows, "charts": charts})
            lead = (
                "For each stage alone: the share of clips dropped if clips more similar than the threshold count as "
                "duplicates. The dot is the current threshold. One clip of each group is kept. Pairs are shown below."
            )
            yield Section("Duplicate thresholds", body, lead, step.name, folded=True)
