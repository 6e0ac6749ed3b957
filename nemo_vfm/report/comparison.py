"""Writes one page about several runs: how each ended, in what recipes differ, and their curves over each other."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from nemo_vfm.core.secret import conceal
from nemo_vfm.core.storage.files import write_text
from nemo_vfm.core.types.job import REPORT
from nemo_vfm.report.page import page_text
from nemo_vfm.report.parts.chart import ChartLine, Point, grid, line_chart, smooth_both_ways, spreads
from nemo_vfm.report.parts.head import Head
from nemo_vfm.report.parts.plain_text import clean, figure, words
from nemo_vfm.report.parts.run_values import RANKING, RunFolder, columns
from nemo_vfm.report.parts.section import Card, Section, fragment

MAX_RUNS = 16  # lines of a chart
MAX_COLUMNS = 6  # of the table; further settings are folded below it
NUM_OPEN = 6
MAX_OWN_LEGEND = 4  # runs; of more, one legend stands above all charts
_RAMP = 8  # tones n0 to n7
#: Metrics with a title of their own, in the order of their charts.
_TITLES = {"val_loss": "Validation loss", "loss": "Loss", "val_perplexity": "Perplexity of held-out text", **RANKING,
           "lr": "Learning rate", "grad_norm": "Gradient norm", "tokens_per_s": "Tokens per second",
           "samples_per_s": "Samples per second", "mfu": "MFU"}  # fmt: skip
_TABLE = """
<div class="scroll"><table class="compared">
<thead><tr><th scope="col">run</th>
<th scope="col">state</th>
{% for name in figures %}
<th scope="col" class="n">{{ name }}</th>
{% endfor %}
{% for name in columns %}
<th scope="col">{{ name }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for run in runs %}
<tr><th scope="row"><span class="key {{ run.look.style }} tone-{{ run.look.tone }}">
{%- if run.link %}<a href="{{ run.link }}">{{ run.name }}</a>{% else %}{{ run.name }}{% endif %}</span></th>
<td>{{ run.state }}</td>
{% for value in run.figures %}
<td class="n">{{ value }}</td>
{% endfor %}
{% for value in run.settings %}
<td>{{ value }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody></table></div>
"""
_MORE = """
<div class="scroll"><table>
<thead><tr><th scope="col">key</th>{% for name in names %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for key, values in rows %}
<tr><th scope="row">{{ key }}</th>{% for value in values %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
"""
_LEGEND = """
<p class="legend shared">{% for name, look in keys %}
<span class="key {{ look.style }} tone-{{ look.tone }}">{{ name }}</span>
{% endfor %}</p>
{{ charts }}"""
Curves = dict[tuple[str, str], list[Point]]  # by step of a workflow and metric


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run among others."""

    name: str  #: how the user calls it
    folder: Path
    state: str  #: how it ended
    settings: Mapping[str, str]  #: by key, the values of its recipe that others have otherwise; empty where it has none
    figures: Mapping[str, float]  #: what it measured in the end


@dataclass(frozen=True, slots=True)
class LineStyle:
    """How a run's lines are drawn; no two that are drawn look alike."""

    tone: str  #: see `ChartLine`
    style: Literal["line", "dash"] = "line"  #: see `ChartLine`


def write(path: Path, title: str, runs: Sequence[ComparedRun], best: str = "", measure: str = "") -> Path:
    """Write the page.

    Args:
        best: name of the best run, by the figure `measure`; empty where nobody can tell.

    Raises:
        NotADirectoryError: a run has no folder.
        OSError: the page cannot be written.
    """
    # Five are told apart by hue, more by their place on a ramp and then by dashes.
    looks = [LineStyle(tone) for tone in "abcde"[: len(runs)]]
    if len(runs) > len(looks):
        drawn = min(len(runs), MAX_RUNS)
        tones = [f"n{round(place * (_RAMP - 1) / (drawn - 1))}" for place in range(drawn)]
        looks = [LineStyle(tone, "dash" if tone in tones[:place] else "line") for place, tone in enumerate(tones)]
        looks += [LineStyle("other")] * (len(runs) - drawn)
    # Settings that most runs have first: of recipes that have little in common, what can be compared.
    count = Counter(key for run in runs for key, value in run.settings.items() if value)
    ordered = sorted(count, key=lambda key: -count[key])
    settings, more = ordered[:MAX_COLUMNS], ordered[MAX_COLUMNS:]
    # Up to four figures that any run has, losses first; another that no two runs have otherwise tells nothing.
    known = dict.fromkeys(name for run in runs for name in run.figures)
    losses = [name for name in known if name.split("/")[-1] in ("val_loss", "loss")]
    differing = [name for name in known if len({run.figures[name] for run in runs if name in run.figures}) > 1]
    figures = list(dict.fromkeys(losses + differing))[:4]
    pages = [run.folder / REPORT for run in runs]
    links = [f"./{quote(os.path.relpath(page, path.parent))}" if page.is_file() else "" for page in pages]
    rows = [
        {"name": run.name, "look": look, "state": run.state, "link": link,
         "settings": [run.settings.get(key, "") for key in settings],
         "figures": [figure(run.figures.get(name)) if name in run.figures else "" for name in figures]}
        for run, look, link in zip(runs, looks, links, strict=True)
    ]  # fmt: skip
    columns = [key.removeprefix("steps.") for key in settings]
    names = [words(name) for name in figures]
    sections = [Section("Runs", fragment(_TABLE, {"runs": rows, "columns": columns, "figures": names}))]
    if more:
        others = [(key, [run.settings.get(key, "") for run in runs]) for key in more]
        body = fragment(_MORE, {"names": [run.name for run in runs], "rows": others})
        lead = f"{len(more)} further keys of the recipes."
        sections.append(Section("Other differences", body, lead, folded=True))
    sections += _curves(runs, looks)
    head = Head(title, f"{len(runs)} runs compared.", (), "")
    cards = [Card("best run", best, words(measure))] if best else []
    write_text(path, conceal(page_text(head, sections, cards, (), kind="comparison of runs")))
    return path


def _curves(runs: Sequence[ComparedRun], looks: Sequence[LineStyle]) -> Iterator[Section]:
    """A chart for each metric that a run logged, with a line for each run that did."""
    drawn: list[tuple[ComparedRun, LineStyle, Curves]] = []
    for run, look in list(zip(runs, looks, strict=True))[:MAX_RUNS]:
        folder, found = RunFolder.open(run.folder), Curves()
        trained = folder.steps_with("metrics.jsonl")
        for step in trained:  # a run's only training has no name, so that runs of other recipes line up
            values, _ = columns(folder.read_lines(step.folder / "metrics.jsonl"))
            found |= {(step.name if len(trained) > 1 else "", key): points for key, points in values.items()}
        drawn.append((run, look, found))
    order = list(_TITLES)
    keys = sorted(
        {key for _, _, curves in drawn for key in curves},
        key=lambda key: (order.index(key[1]) if key[1] in order else len(order), key[1], key[0]),
    )
    shared = len(drawn) > MAX_OWN_LEGEND
    charts = []
    for step_name, name in keys:
        title = _TITLES.get(name, words(clean(name, 60))) + (f" ({step_name})" if step_name else "")
        lines = []
        for run, look, curves in drawn:
            if points := curves.get((step_name, name), []):
                points = smooth_both_ways(points, max(len(points) / 60, 1)) if name in ("loss", "grad_norm") else points
                lines.append(ChartLine(run.name, points, look.tone, look.style))
        log_y = spreads([point for line in lines for point in line.points])
        charts.append(line_chart(title, lines, x_label="step", log_y=log_y, with_legend=not shared))
    if charts:
        body = grid(charts, NUM_OPEN)
        if shared:
            body = fragment(_LEGEND, {"keys": [(run.name, look) for run, look, _ in drawn], "charts": body})
        left = f" The first {MAX_RUNS} of {len(runs)} runs are shown." if len(runs) > MAX_RUNS else ""
        yield Section("Curves", body, f"The loss of each batch is smoothed over steps.{left}")
