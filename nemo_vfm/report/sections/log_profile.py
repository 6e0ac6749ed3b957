"""Tabulates the profile of a log: dedupe factors, features, rows of tables and their drift, with a curve a table."""

from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from nemo_vfm.report.parts.chart import ChartLine, grid, line_chart
from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, as_sequence, clean, exact, figure, number
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Card, Section, fragment

ORDER = 12
MAX_ROWS, OPEN_CHARTS = 40, 6
_BODY = """
{% for title, headings, rows in tables if rows %}
<h3>{{ title }}</h3>
<div class="scroll"><table class="counts">
<thead><tr>
{% for heading in headings %}
<th scope="col"{% if not loop.first %} class="n"{% endif %}>{{ heading }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td class="n">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endfor %}
{{ charts }}
"""
_GROUPS = ("group", "unchanged", "factor predicted", "factor measured")
_FEATURES = ("feature", "coverage", "mean length", "longest", "distinct ids", "unchanged", "factor predicted")
_TABLES = (
    "table", "rows", "looked up", "by the formula", "ids that collide", "hold 50 %", "hold 90 %", "hold 99 %",
    "lookups a row and batch",
)  # fmt: skip
_DRIFT = ("table", "distance", "at random", "hot set stays", "at random")


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step that profiled a log."""
    for step, found in run.each("profile.json"):
        groups, features, tables = (as_mapping(found.get(part)) for part in ("groups", "features", "tables"))
        if not features:
            continue
        parts = [
            ("Groups that repeat within sessions", _GROUPS, _rows(run, groups, lambda group: [
                _percent(group.get("unchanged")), _estimate(group.get("predicted")), _estimate(group.get("measured")),
            ])),
            ("Features", _FEATURES, _rows(run, features, _feature)),
            ("Rows of tables", _TABLES, _rows(run, tables, _table)),
            ("Drift from one time window to the next", _DRIFT, _rows(run, tables, _drift)),
        ]  # fmt: skip
        charts = [chart for name, table in tables.items() for chart in _charts(clean(name, 60), as_mapping(table))]
        values = {"tables": parts, "charts": grid(charts, OPEN_CHARTS) if charts else ""}
        a_session = figure(number(as_mapping(found.get("samples_per_session")).get("value")))
        sessions = number(as_mapping(found.get("sessions")).get("value"))
        cards = [Card("samples a session", a_session, f"{exact(sessions)} sessions")]
        factors = {
            name: number(as_mapping(as_mapping(group).get("measured")).get("value")) for name, group in groups.items()
        }
        best = max(factors, key=lambda name: factors[name] or 0.0, default=None)
        if best is not None:
            cards.append(Card("highest dedupe factor", figure(factors[best]), f"group {clean(best, 40)}"))
        samples, of = number(found.get("samples")), number(as_mapping(found.get("data")).get("samples"))
        confidence = 100 * (number(found.get("confidence")) or 0.0)
        lead = (
            f"Measured on {exact(samples)} of {exact(of)} samples; ± is half the {figure(confidence)} % interval. A "
            f"factor is how many samples share a stored row: predicted from samples per session and the share of "
            f"unchanged samples, measured in batches of {exact(number(found.get('batch_size')))}."
        )
        yield Section("Profile of the log", fragment(_BODY, values), lead, step.name, tuple(cards))


def _rows(run: RunFolder, found: Mapping[str, Any], row: Any) -> list[list[str]]:
    if len(found) > MAX_ROWS:
        run.note(f"Only the first {MAX_ROWS} of {len(found):,} rows are shown; profile.json has all.")
    return [[clean(name, 60), *row(as_mapping(one))] for name, one in list(found.items())[:MAX_ROWS]]


def _feature(feature: Mapping[str, Any]) -> list[str]:
    length = as_mapping(feature.get("length"))
    return [
        _percent(feature.get("coverage")), _estimate(length.get("mean")), exact(number(length.get("max"))),
        _estimate(feature.get("distinct")), _percent(feature.get("unchanged")), _estimate(feature.get("factor")),
    ]  # fmt: skip


def _table(table: Mapping[str, Any]) -> list[str]:
    after, rows = as_mapping(table.get("after")), as_sequence(as_mapping(table.get("icdf")).get("value"))
    held = [exact(number(rows[percent])) if percent < len(rows) else "–" for percent in (50, 90, 99)]
    counts = [
        number(one) for one in (table.get("rows"), *map(after.get, ("occupied", "expected_occupied", "collided")))
    ]
    return [*(figure(one if one is None else float(round(one))) for one in counts), *held,
            _estimate(as_mapping(table.get("reuse")).get("mean"))]  # fmt: skip


def _drift(table: Mapping[str, Any]) -> list[str]:
    found, cells = as_mapping(table.get("drift")), []
    for what in ("distance", "hot_set_stays"):
        for part in (found, as_mapping(found.get("at_random"))):
            finite = sorted(one for one in map(number, as_sequence(part.get(what))) if one is not None)
            ends = dict.fromkeys(f"{one:.2f}" for one in (finite[0], finite[-1])) if finite else {"–": None}
            cells.append(" to ".join(ends))
    return cells


def _charts(name: str, table: Mapping[str, Any]) -> Iterator[Markup]:
    found, rows = as_mapping(table.get("icdf")), number(table.get("rows"))
    low, value, high = (
        [(float(percent), row) for percent, one in enumerate(as_sequence(found.get(end))) if (row := number(one))]
        for end in ("low", "value", "high")
    )
    lines = [ChartLine("rows that hold this share", value)]
    if low != high:
        lines += [ChartLine("interval", low, style="faint"), ChartLine("", high, style="faint")]
    if len(value) > 1:
        yield line_chart(f"{name}, {figure(rows)} rows", lines, x_label="% of the lookups", log_y=True)


def _estimate(estimate: Any, scale: float = 1.0) -> str:
    """A figure, and half of its interval where that has a width."""
    value, low, high = (number(as_mapping(estimate).get(end)) for end in ("value", "low", "high"))
    if value is None:
        return "–"
    half = (high - low) / 2 * scale if low is not None and high is not None else 0.0
    half = half if half > 1e-6 * abs(value * scale) else 0.0  # what rounding leaves of a width of 0
    if not half and value * scale == int(value * scale):
        return exact(value * scale)
    digits = max(0, 2 - len(str(int(abs(value * scale)))) + 1)
    return f"{value * scale:,.{digits}f}" + (f" ± {half:.1g}" if half else "")


def _percent(estimate: Any) -> str:
    found = _estimate(estimate, 100.0)
    return found if found == "–" else f"{found} %"
