"""Plots observed against predicted probabilities of held-out samples, and tabulates how well they are ranked."""

from collections.abc import Iterator

from nemo_vfm.report.parts.chart import ChartLine, grid, line_chart
from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, as_sequence, clean, exact, number, words
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Card, Section, fragment

ORDER = 7
OPEN_CHARTS = 4
_MEASURES = {"auc": "AUC", "normalised_entropy": "normalised entropy", "calibration": "calibration",
             "log_loss": "log loss", "ece": "calibration error"}  # fmt: skip
_BODY = """
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">label</th><th scope="col" class="n">samples</th>
{% for name in names %}<th scope="col" class="n">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row">{{ row.label }}</th><td class="n">{{ row.samples }}</td>
{% for value in row.figures %}<td class="n">{{ value }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{{ charts }}
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step whose task ranks samples."""
    for step, found in run.each("validation.json"):
        labels = {
            clean(str(name), 60): as_mapping(measured) for name, measured in as_mapping(found.get("labels")).items()
        }
        if not labels:
            continue
        charts = []
        for name, measured in labels.items():
            pairs = [(number(as_mapping(one).get("predicted")), number(as_mapping(one).get("observed")))
                     for one in as_sequence(measured.get("reliability"))]  # fmt: skip
            points = sorted((x, y) for x, y in pairs if x is not None and y is not None)
            if points:
                low, high = points[0][0], points[-1][0]
                lines = [
                    ChartLine("as predicted", [(low, low), (high, high)], "b"),
                    ChartLine("observed", points, "a", "dots"),
                ]
                title = f"Reliability: {words(name)}"
                charts.append(line_chart(title, lines, x_label="predicted probability", zero=True))
        rows = [{"label": words(label), "samples": exact(number(measured.get("weight"))),
                 "figures": [_digits(number(measured.get(key))) for key in _MEASURES]}
                for label, measured in labels.items()]  # fmt: skip
        values = {"names": _MEASURES.values(), "rows": rows, "charts": grid(charts, OPEN_CHARTS)}
        lead = (
            f"Measured on held-out samples after step {exact(number(found.get('step')))}. Calibration is predicted "
            "over observed clicks. A normalised entropy below 1 beats predicting the mean. Each dot is a tenth of the "
            "samples; on the line, predictions match observations."
        )
        name, measured = next(iter(labels.items()))
        auc, entropy = (number(measured.get(key)) for key in ("auc", "normalised_entropy"))
        label = "AUC" if len(labels) == 1 else f"AUC of {words(name)}"
        card = Card(label, _digits(auc), f"normalised entropy {_digits(entropy)}")
        cards = () if auc is None else (card,)
        yield Section("Ranking and calibration", fragment(_BODY, values), lead, step.name, cards)


def _digits(value: float | None) -> str:
    """Four: models of clicks differ in the third or fourth."""
    return "–" if value is None else f"{value:.4f}"
