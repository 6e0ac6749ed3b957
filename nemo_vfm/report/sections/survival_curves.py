"""Plots for each threshold how many clips remain as it moves, and what each rule costs alone."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from markupsafe import Markup

from nemo_vfm.report.parts.chart import ChartLine, grid, line_chart
from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, clean, exact, number, words
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section, fragment

ORDER = 25
OPEN_CHARTS = 12
_BODY = """
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">rule</th><th scope="col">drops</th><th scope="col" class="n">clips that break it</th>
<th scope="col" class="n">dropped by it</th><th scope="col" class="n">by it alone</th></tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row">{{ row.name }}</th><td>{{ row.text }}</td>
{% for count in row.counts %}
<td class="n">{{ count }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody></table></div>
{{ charts }}
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step that decided by rules."""
    for step, found in run.each("survival.json"):
        rules = as_mapping(found.get("rules"))
        if rules:
            charts = [chart for name, rule in rules.items() for chart in _charts(str(name), as_mapping(rule))]
            rows = []
            for name, rule in rules.items():
                drops = (as_mapping(as_mapping(rule).get(key)) for key in ("drops", "drops_first", "drops_alone"))
                rows.append({"name": words(clean(str(name), 60)), "text": clean(str(as_mapping(rule).get("rule")), 120),
                             "counts": [exact(number(one.get("clips")) or 0) for one in drops]})  # fmt: skip
            lead = (
                "Clips that pass all rules as one threshold moves and the others stay. The dot is the current "
                "threshold. A rule that is never the only reason for a drop is redundant. Rules that compare clips "
                "are not shown."
            )
            body = fragment(_BODY, {"rows": rows, "charts": grid(charts, OPEN_CHARTS)})
            yield Section("Effect of each threshold", body, lead, step.name, folded=True)


def _charts(name: str, rule: Mapping[str, Any]) -> Iterator[Markup]:
    curves = rule.get("curves")
    for curve in map(as_mapping, curves if isinstance(curves, list) else ()):
        xs, ys = curve.get("thresholds"), curve.get("clips")
        if isinstance(xs, list) and isinstance(ys, list):
            pairs = zip(map(number, xs), map(number, ys), strict=False)
            points = [(x, y) for x, y in pairs if x is not None and y is not None]
            if len({x for x, _ in points}) > 1:
                score, op = clean(str(curve.get("score")), 60), clean(str(curve.get("op")), 4)
                # At a threshold itself a clip passes either rule: what is counted there holds on the side that drops
                # fewer.
                steps: Literal["before", "after"] = "after" if op.startswith(">") else "before"
                lines = [ChartLine("clips that pass", points, "kept", steps=steps)]
                if here := [point for point in points if point[0] == number(curve.get("threshold"))]:
                    lines.append(ChartLine("now", here, "dropped", "dots"))
                title = f"{words(clean(name, 60))}: {score} {op}"
                yield line_chart(title, lines, x_label=score, zero=True, whole=True)
