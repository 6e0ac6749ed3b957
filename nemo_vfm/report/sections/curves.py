"""Plots metrics.jsonl: losses, the loss by noise level, learning rate, throughput and other logged values."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from statistics import median_high

from markupsafe import Markup

from nemo_vfm.core.metric_names import not_finite_since, not_finite_text
from nemo_vfm.report.parts.chart import ChartLine, Point, line_chart, smooth_both_ways, spreads
from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, clean, figure, number, span, words
from nemo_vfm.report.parts.run_values import RANKING, RunFolder, columns
from nemo_vfm.report.parts.section import Card, Section, fragment

ORDER = 3
MAX_OTHERS = 8
MAX_LINES = 10  # of one chart
NOISE = "val_loss/noise_"  # the validation loss of a range of noise levels
KNOWN = ("loss", "val_loss", "val_perplexity", "lr", "samples_per_s", "tokens_per_s", "mfu", "grad_norm")
NUM_TONES = 8
_CHARTS = """
<div class="charts">{% for chart in charts %}{{ chart }}{% endfor %}</div>
{% if footnote %}
<p class="footnote">{{ footnote }}</p>
{% endif %}
"""
_HEADLINES = {"val_perplexity": "perplexity", "val_loss": "validation loss", "loss": "training loss"}
MFU = "MFU is {formula}; the peak is {peak}."
Values = Mapping[str, Sequence[Point]]


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """The losses of each step that logged metrics; whatever else it logged is folded."""
    for step in run.steps_with("metrics.jsonl"):
        records = run.read_lines(step.folder / "metrics.jsonl")
        by_step, not_finite = columns(records)
        if not_finite:
            run.note(f"{not_finite:,} values in metrics.jsonl are not finite and are not drawn.")
        lost = not_finite_since(reversed(records))
        if by_step or lost:
            efficiency = as_mapping(run.read_json(step.folder / "mfu.json") or {})
            footnote = ""
            if {"formula", "peak"} <= efficiency.keys():
                footnote = MFU.format(formula=clean(efficiency["formula"]), peak=clean(efficiency["peak"]))
            timed = ((number(record.get("step")), number(record.get("time_s"))) for record in records)
            times = {at: seconds for at, seconds in timed if at is not None and seconds is not None}
            body = fragment(_CHARTS, {"charts": list(_losses(by_step)), "footnote": footnote})
            last = max([*(points[-1][0] for points in by_step.values()), *lost.values(), *times])
            took = f" in {span(max(times.values()))}" if times else ""
            beware = f" {clean(not_finite_text(lost), 300)}." if lost else ""
            cards = [Card("training loss", "not finite", f"since step {lost['loss']:,}")] if "loss" in lost else []
            for key, label in _HEADLINES.items():
                if (points := by_step.get(key)) and not cards:
                    before = f"from {figure(points[0][1])}" if len(points) > 1 else ""
                    cards.append(Card(label, figure(points[-1][1]), before))
            used = by_step.get("mfu")
            utilised = f"MFU {100 * median_high(y for _, y in used):.1f} %" if used else "median"
            for key, label in (("tokens_per_s", "tokens a second"), ("samples_per_s", "samples a second")):
                if speed := by_step.get(key):
                    cards.append(Card(label, figure(median_high(y for _, y in speed)), utilised))
                    break
            yield Section("Training", body, f"{last:,.0f} steps{took}.{beware}", step.name, tuple(cards))
            if charts := [*_speeds(by_step, times), *_others(by_step)]:
                body = fragment(_CHARTS, {"charts": charts, "footnote": ""})
                lead = "Learning rate, speed and other logged values."
                yield Section("Rates and norms", body, lead, step.name, folded=True)


def _losses(values: Values) -> Iterator[Markup]:
    raw, checked = values.get("loss", ()), values.get("val_loss", ())
    half_life = max(len(raw) / 60, 1)
    lines = [
        ChartLine("each batch", raw, "a", "faint"),
        ChartLine("smoothed", smooth_both_ways(raw, half_life), "a"),
        ChartLine("validation", checked, "b", "dots"),
    ]
    if raw or checked:
        yield line_chart("Loss", lines, x_label="step", log_y=spreads([*raw, *checked]))
    if points := values.get("val_perplexity"):
        yield line_chart("Perplexity of held-out text", [ChartLine("", points, "b", "dots")], x_label="step",
                         log_y=spreads(points))  # fmt: skip
    for name, title in RANKING.items():
        if by_label := [key for key in sorted(values) if _ranks(key, name)]:
            lines = [_one_of_several(values, key, words(clean(key.removeprefix(name), 40)), place)
                     for place, key in enumerate(by_label)]  # fmt: skip
            yield line_chart(title, lines, x_label="step")
    if named := _own_losses(values):
        lines = [_one_of_several(values, key, clean(key, 40), place) for place, key in enumerate(named[:MAX_LINES])]
        yield line_chart("Losses", lines, x_label="step")
    for name, keys in _by_loader(values).items():
        if "loss" in name:
            yield _loaders(values, name, keys)
    bins = []  # by the noise level that each begins at
    for key in (key for key in values if key.startswith(NOISE)):
        begin, span_of = re.search(r"\d+(?:\.\d+)?", key), re.fullmatch(NOISE + r"([\d.]+)-([\d.]+)", key)
        name = f"{span_of[1]}–{span_of[2]}" if span_of else words(clean(key.removeprefix(NOISE), 40))
        bins.append((float(begin[0]) if begin else float("inf"), key, name))
    if bins:
        bins.sort()
        tones = [f"n{round(place * (NUM_TONES - 1) / max(len(bins) - 1, 1))}" for place in range(len(bins))]
        lines = [ChartLine(name, values[key], tone, "dots") for (_, key, name), tone in zip(bins, tones, strict=True)]
        every = [point for _, key, _ in bins for point in values[key]]
        yield line_chart("Validation loss by noise level", lines, x_label="step", log_y=spreads(every))


def _speeds(values: Values, times: Mapping[float, float]) -> Iterator[Markup]:
    if "lr" in values:
        yield line_chart("Learning rate", [ChartLine("", values["lr"], "c")], x_label="step", zero=True)
    speed = (
        ("tokens_per_s", "Tokens per second") if "tokens_per_s" in values else ("samples_per_s", "Samples per second")
    )
    for key, title, factor in ((*speed, 1), ("mfu", "MFU, percent of peak", 100)):
        if points := values.get(key):
            known = all(step in times for step, _ in points)
            moved = [(times[x] if known else x, y * factor) for x, y in points]
            yield line_chart(
                title, [ChartLine("", sorted(moved), "d")], x_label="seconds" if known else "step", zero=True
            )
    if "grad_norm" in values:
        points = values["grad_norm"]
        lines = [
            ChartLine("", points, "e", "faint"),
            ChartLine("", smooth_both_ways(points, max(len(points) / 60, 1)), "e"),
        ]
        yield line_chart("Gradient norm", lines, x_label="step", log_y=spreads(points))


def _others(values: Values) -> Iterator[Markup]:
    loaders = _by_loader(values)
    known = {*KNOWN, *(key for key in values for name in RANKING if _ranks(key, name)), *chain(*loaders.values())}
    names = [key for key in sorted(values) if key not in known and not key.startswith(NOISE)]
    names = [key for key in names if key not in _own_losses(values)]
    for name in [name for name in loaders if "loss" not in name][:MAX_OTHERS]:
        yield _loaders(values, name, loaders[name])
    for key in names[:MAX_OTHERS]:
        yield line_chart(words(clean(key, 60)), [ChartLine("", values[key], "c")], x_label="step")


def _own_losses(values: Values) -> list[str]:
    """Of a training that has no loss by that name, such as one of two networks: what it logs as one."""
    return [] if "loss" in values else [key for key in sorted(values) if "loss" in key and not key.startswith("val")]


def _by_loader(values: Values) -> dict[str, list[str]]:
    """Of several validation loaders, Lightning logs each metric as NAME/dataloader_idx_N: the keys of each name."""
    found = {key: match for key in values if (match := re.fullmatch(r"(.+)/dataloader_idx_(\d{1,6})", key))}
    keys = sorted(found, key=lambda key: (found[key][1], int(found[key][2])))
    return {name: list(group) for name, group in groupby(keys, key=lambda key: found[key][1])}


def _loaders(values: Values, name: str, keys: Sequence[str]) -> Markup:
    """A line for each, under the number that Lightning gives it."""
    title = "Validation loss" if name == "val_loss" else words(clean(name, 60))
    lines = [_one_of_several(values, key, f"loader {key.rpartition('_')[2]}", place)
             for place, key in enumerate(keys[:MAX_LINES])]  # fmt: skip
    return line_chart(f"{title} by loader", lines, x_label="step")


def _one_of_several(values: Values, key: str, name: str, place: int) -> ChartLine:
    return ChartLine(name, values[key], "abcde"[place % 5], "dots")


def _ranks(key: str, name: str) -> bool:
    """Whether it is this measure, of the only label or of one of several."""
    return key == name or key.startswith(f"{name}_")
