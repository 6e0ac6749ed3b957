"""Draws SVG charts in percent of their frame: the page's style gives size, colours and text, and no clock matters."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from nemo_vfm.report.parts.plain_text import figure
from nemo_vfm.report.parts.section import fragment

MAX_POINTS = 480
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line of a chart."""

    name: str  #: its word in the legend; the empty text leaves it out
    points: Sequence[Point]  #: (x, y) by rising x, all finite
    tone: str = "a"  #: the colour's name in the page's style
    #: a line, a dashed one, a faint line for raw values, or a line with a dot at each value
    style: Literal["line", "dash", "faint", "dots"] = "line"
    #: where the value of a point holds: up to it from the point before, or from it to the next; else the line is
    #: straight between points
    steps: Literal["", "before", "after"] = ""


@dataclass(frozen=True, slots=True)
class HistogramGroup:
    """Values of one colour in a histogram."""

    name: str
    values: Sequence[float]
    tone: str


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """A range of values, linear or logarithmic, with round ticks."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def around(cls, values: Sequence[float], *, log: bool = False, zero: bool = False) -> "ChartAxis":
        """An axis on which all of `values` fit, with a little air; from zero where `zero`."""
        low, high = min(values), max(values)
        if log:
            return cls(low / 1.1, max(high * 1.1, sys.float_info.min), log=True)  # below, a tenth more may be no more
        low = min(low, 0.0) if zero else low
        air = (high - low) * 0.05 or max(abs(high) * 0.1, 1e-9)
        return cls(low if zero and low == 0 else low - air, high + air)

    def place(self, value: float) -> float:
        """Where a value lies, 0 at the low end and 1 at the high end."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Some round values on the axis."""
        if self.log:
            exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1,) if len(exponents) > 4 else (1, 2, 5)
            return [v for e in exponents for s in steps if self.low <= (v := s * 10.0**e) <= self.high]
        rough = (self.high - self.low) / wanted
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [place * step for place in range(first, last + 1)]


def tick_text(value: float) -> str:
    """A tick's label, short: few characters fit beside the axis."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-2:
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{float(f'{value:.4g}'):g}"


def thin(points: Sequence[Point]) -> Sequence[Point]:
    """At most `MAX_POINTS` points that keep every peak: the lowest and the highest of each stretch."""
    if len(points) <= MAX_POINTS:
        return points
    width = math.ceil(len(points) / (MAX_POINTS // 2))
    kept: list[Point] = []
    for start in range(0, len(points), width):
        stretch = points[start : start + width]
        pair = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(pair)
    return [points[0], *kept, points[-1]]


def smooth(points: Sequence[Point], half_life: float) -> list[Point]:
    """The exponential moving average over the points, its start corrected for having begun at zero."""
    keep, total, weight = 0.5 ** (1 / max(half_life, 1e-9)), 0.0, 0.0
    out = []
    for x, y in points:
        total, weight = keep * total + (1 - keep) * y, keep * weight + (1 - keep)
        out.append((x, total / weight))
    return out


def smooth_both_ways(points: Sequence[Point], half_life: float) -> list[Point]:
    """The mean of the averages from either end: one that looks back only lies above a falling curve."""
    forward = smooth(points, half_life)
    backward = smooth([*reversed(points)], half_life)[::-1]
    return [(x, (y + z) / 2) for (x, y), (_, z) in zip(forward, backward, strict=True)]


def spreads(points: Sequence[Point]) -> bool:
    """Whether a logarithmic axis shows more: all positive, and more than a factor of six apart."""
    ys = [y for _, y in points if y > 0]
    return len(ys) == len(points) and bool(ys) and max(ys) > 6 * min(ys)


_GRID = """
<div class="charts">{% for c in open %}{{ c }}{% endfor %}</div>
{% if more %}
<details><summary>{{ more | length }} more</summary>
<div class="charts">{% for c in more %}{{ c }}{% endfor %}</div></details>
{% endif %}"""


def grid(charts: Sequence[Markup], num_open: int) -> Markup:
    """Charts side by side; those beyond the first `num_open` are folded."""
    return fragment(_GRID, {"open": charts[:num_open], "more": charts[num_open:]})


def _across(axis: ChartAxis) -> Callable[[float], float]:
    return lambda value: round(100 * axis.place(value), 2)


def _up(axis: ChartAxis) -> Callable[[float], float]:
    return lambda value: round(100 - 100 * axis.place(value), 2)


_FRAME = """
<figure class="chart">
<figcaption><strong>{{ title }}</strong>
{% if legend %}
<span class="legend">
{% for name, tone, style in legend %}
<span class="key {{ style }} tone-{{ tone }}">{{ name }}</span>
{% endfor %}
</span>
{% endif %}
</figcaption>
<svg role="img" aria-label="{{ alt }}">
{% for value in y_ticks %}
<line class="grid" x2="100%" y1="{{ up(value) }}%" y2="{{ up(value) }}%"/>
<text class="tick" dx="-7" y="{{ up(value) }}%" dy="4" text-anchor="end">{{ tick(value) }}</text>
{% endfor %}
{% for value in x_ticks %}
{% set anchor = "end" if across(value) > 97 else "middle" %}
<text class="tick" x="{{ across(value) }}%" y="100%" dy="17" text-anchor="{{ anchor }}">{{ tick(value) }}</text>
{% endfor %}
<line class="axis" x2="100%" y1="100%" y2="100%"/>
<text class="tick" x="100%" y="100%" dy="35" text-anchor="end">{{ x_label }}</text>
{{ inside }}
</svg>
</figure>"""


def _frame(
    title: str, alt: str, x: ChartAxis, y: ChartAxis, x_label: str, legend: Sequence[tuple[str, str, str]],
    inside: Markup,
    y_ticks: Sequence[float],
) -> Markup:  # fmt: skip
    x_ticks = [tick for tick in x.ticks(6) if x_label != "step" or tick == int(tick)]
    axes = {"across": _across(x), "up": _up(y), "x_ticks": x_ticks, "y_ticks": y_ticks, "tick": tick_text}
    return fragment(
        _FRAME, {"title": title, "alt": alt, "x_label": x_label, "legend": legend, "inside": inside, **axes}
    )


# Only paths need a scale of their own: stretched as the frame is, with strokes that stay as wide (page.css).
_LINES = """
<svg viewBox="0 0 100 100" preserveAspectRatio="none" width="100%" height="100%">
{% for line in lines %}
<path class="{{ line.style }} tone-{{ line.tone }}" d="{{ line.d }}"/>
{% endfor %}
</svg>
{% for line in lines %}
{% for x, y in line.dots %}
<circle class="{{ "dash " if line.style == "dash" }}tone-{{ line.tone }}" cx="{{ x }}%" cy="{{ y }}%" r="2.6"/>
{% endfor %}
{% endfor %}"""


def line_chart(
    title: str, lines: Sequence[ChartLine], *, x_label: str, log_y: bool = False, zero: bool = False,
    whole: bool = False,
    with_legend: bool = True,
) -> Markup:  # fmt: skip
    """Lines over a common x; `log_y` is obeyed where all values are positive and sane, `zero` starts y there.

    `whole`: y counts something, so only whole numbers stand beside it. A line of one point is a dot. Without a legend,
    the names are in the description alone.
    """
    lines = [line for line in lines if line.points]
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    if not ys:
        return fragment('<p class="quiet">{{ t }}: no finite value was recorded.</p>', {"t": title})
    x_axis = ChartAxis(min(xs), max(xs)) if max(xs) > min(xs) else ChartAxis.around(xs)
    y_axis = ChartAxis.around(ys, log=log_y and min(ys) > 0 and max(ys) < 1e9 * min(ys), zero=zero)
    across, up = _across(x_axis), _up(y_axis)
    paths = []
    for line in lines:
        dots = [(across(x), up(y)) for x, y in thin(line.points)]
        path = "M" + "L".join(f"{x} {y}" for x, y in dots)
        if line.steps:
            moves = (f"V{y}H{x}" if line.steps == "before" else f"H{x}V{y}" for x, y in dots[1:])
            path = f"M{dots[0][0]} {dots[0][1]}" + "".join(moves)
        shown = dots if len(dots) == 1 or (line.style == "dots" and len(dots) <= 60) else []
        paths.append({"style": line.style, "tone": line.tone, "dots": shown,
                      "d": Markup(path)})  # fmt: skip  # noqa: S704 - numbers only
    legend = [(line.name, line.tone, line.style) for line in lines if line.name and with_legend]
    inside = fragment(_LINES, {"lines": paths})
    ticks = [tick for tick in y_axis.ticks(6) if not whole or tick == int(tick)]
    # What a listener should know of the chart: where each line begins and ends.
    parts = [
        f"{line.name or title} from {figure(line.points[0][1])} to {figure(line.points[-1][1])}"
        for line in lines if line.style != "faint" or len(lines) == 1
    ]  # fmt: skip
    return _frame(title, f"{title} over {x_label}: " + "; ".join(parts), x_axis, y_axis, x_label, legend, inside, ticks)


_BARS = """
{% if limit %}
<rect class="gone" x="{{ limit.from }}%" width="{{ limit.width }}%" height="100%"/>
{% endif %}
{% for bar in bars %}
<rect class="tone-{{ bar.tone }}"
 x="{{ bar.x }}%" y="{{ bar.y }}%" width="{{ bar.width }}%" height="{{ bar.height }}%"/>
{% endfor %}
{% if limit %}
<line class="limit" x1="{{ limit.at }}%" x2="{{ limit.at }}%" y1="-6" y2="100%"/>
<text class="strong"
 x="{{ limit.at }}%" dx="{{ limit.dx }}" dy="3" text-anchor="{{ limit.anchor }}">{{ limit.text }}</text>
{% endif %}"""


def histogram(
    title: str, groups: Sequence[HistogramGroup], *, limit: tuple[str, float] | None = None, bins: int = 32
) -> Markup:
    """Stacked bars of `groups`; `limit` is ("<" or ">", value): the side that a rule drops, which is shaded."""
    values = sorted(value for group in groups for value in group.values)
    if not values:
        return fragment('<p class="quiet">{{ t }}: no finite value was recorded.</p>', {"t": title})
    low, high = _bar_range(values, limit, bins)
    counts = [_count(group.values, low, high, bins, limit) for group in groups]
    x_axis, y_axis = ChartAxis(low, high), ChartAxis(0, max(map(sum, zip(*counts, strict=True))) * 1.15)
    width, up, below, bars = 100 / bins, _up(y_axis), [0] * bins, list[dict[str, object]]()
    for group, row in zip(groups, counts, strict=True):
        for place, count in enumerate(row):
            if count:
                top, base = up(below[place] + count), up(below[place])
                bars.append({"tone": group.tone, "x": round(place * width + 0.15, 2), "y": top,
                             "width": round(width - 0.3, 2), "height": round(base - top, 2)})  # fmt: skip
                below[place] += count
    threshold = None
    if limit is not None:  # where it stands, the stretch that it drops, and its label on the side with more room
        side, at = limit[0], _across(x_axis)(limit[1])
        begin, end = (0, at) if side.startswith("<") else (at, 100)
        label = {"dx": 5, "anchor": "start"} if at < 50 else {"dx": -5, "anchor": "end"}
        text = f"dropped {side} {figure(limit[1])}"
        threshold = {"at": at, "from": begin, "width": max(end - begin, 0), "text": text, **label}
    inside = fragment(_BARS, {"bars": bars, "limit": threshold})
    beyond = sum(value < low or value > high for value in values)
    x_label = f"{beyond} outliers, in the outermost bars" if beyond else ""
    legend = [(f"{g.name} {len(g.values):,}", g.tone, "bar") for g in groups if g.values]
    alt = f"Histogram of {title}: " + ", ".join(name for name, _, _ in legend)
    whole = [tick for tick in y_axis.ticks(4) if tick == int(tick)]
    return _frame(title, alt, x_axis, y_axis, x_label, legend, inside, whole)


def _bar_range(values: Sequence[float], limit: tuple[str, float] | None, bins: int) -> tuple[float, float]:
    """The range of sorted values but the outermost fiftieth on either side, widened so that the threshold is seen."""
    cut = len(values) // 50
    low, high = values[cut], values[-1 - cut]
    if limit:
        low, high = min(low, limit[1]), max(high, limit[1])
    air = (high - low) * 0.02 or max(abs(high) * 0.1, 0.5)
    low, high = 0.0 if low == 0 else low - air, high + air
    if limit is None:
        return low, high
    # Moved by less than a bar, so that the threshold falls between two bars and not inside one.
    width = (high - low) / (bins - 1)
    low = limit[1] - math.ceil((limit[1] - low) / width) * width
    return low, low + bins * width


def _count(
    values: Sequence[float], low: float, high: float, bins: int, limit: tuple[str, float] | None = None
) -> list[int]:
    """Values a bar; one that is the threshold itself stands on the side that its rule puts it on."""
    counts = [0] * bins
    for value in values:
        place = (value - low) / (high - low) * bins
        if limit is not None and value == limit[1]:
            place = round(place) - (1 if limit[0] in (">", "<=") else 0)
        counts[min(max(int(place), 0), bins - 1)] += 1
    return counts
