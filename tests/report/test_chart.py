"""Tests that the marks of charts stand where the numbers say."""

import math
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from nemo_vfm.report.parts import chart
from nemo_vfm.report.parts.chart import (
    ChartAxis,
    ChartLine,
    HistogramGroup,
    grid,
    histogram,
    line_chart,
    smooth,
    smooth_both_ways,
    thin,
    tick_text,
)

FINITE = st.floats(-1e12, 1e12, allow_nan=False)


def test_a_straight_line_is_drawn_straight_from_corner_to_corner():
    html = line_chart("x", [ChartLine("", [(0, 0), (5, 50), (10, 100)])], x_label="step")
    (x0, y0), (x1, y1), (x2, y2) = [
        tuple(map(float, p.split())) for p in re.search(r'd="M([^"]+)"', html)[1].split("L")
    ]  # type: ignore[index]
    assert (x0, x2) == (0, 100)
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1) and y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert y2 < y0, "up is more"


def test_the_number_at_the_right_end_ends_there_so_that_a_phone_cuts_nothing_off():
    html = line_chart("x", [ChartLine("", [(0, 0), (2000, 1)])], x_label="step")
    assert re.search(r'text-anchor="end">2,000<', html) and re.search(r'text-anchor="middle">1,000<', html)


def test_a_chart_has_the_width_that_the_page_gives_it_while_its_text_keeps_its_size():
    for html in (line_chart("x", [ChartLine("", [(0, 1), (9, 2)], style="dots")], x_label="step"),
                 histogram("x", [HistogramGroup("kept", [1.0, 2.0], "kept")], limit=("<", 1.5))):  # fmt: skip
        paths = re.search(r"<svg viewBox.*?</svg>", html, re.DOTALL)
        stretched = paths[0] if paths else ""
        assert "<text" not in stretched and "<circle" not in stretched, "stretched, they would be distorted"
        rest = html.replace(stretched, "")
        placed = re.findall(r' (?:x|x1|x2|cx|width)="([^"]+)"', rest)
        assert placed and all(place.endswith("%") for place in placed) and "viewBox" not in rest


def test_a_tick_on_an_axis_of_steps_is_a_whole_step():
    html = line_chart("x", [ChartLine("", [(1, 0.2), (2, 0.1)])], x_label="step")
    assert re.findall(r'dy="17"[^>]*>([^<]+)<', html) == ["1", "2"]


def test_a_logarithmic_axis_places_the_geometric_mean_in_the_middle():
    assert ChartAxis(1, 100, log=True).place(10) == pytest.approx(0.5)


@given(st.lists(FINITE, min_size=1, max_size=40), st.booleans())
@example([4.0, 2.2250738585072014e-308], True)
@example([5e-324], True)
@settings(max_examples=60)
def test_any_finite_values_make_a_chart_inside_its_frame(values: list[float], log: bool):
    html = line_chart("t", [ChartLine("a", list(enumerate(values)), style="dots")], x_label="step", log_y=log)
    for path in re.findall(r'd="M([^"]+)"', html):
        for point in path.split("L"):
            x, y = map(float, point.split())
            assert 0 <= x <= 100 and 0 <= y <= 100
    assert "nan" not in html and "inf" not in html.replace("info", "")


@given(st.lists(FINITE, min_size=1, max_size=60), st.sampled_from(["<", ">"]), FINITE)
@settings(max_examples=60)
def test_every_value_of_a_histogram_is_in_some_bar_and_no_bar_straddles_the_threshold(values, side, at):
    low, high = chart._bar_range(sorted(values), (side, at), 32)
    assert sum(chart._count(values, low, high, 32)) == len(values)
    place = (at - low) / (high - low) * 32
    assert abs(place - round(place)) < 1e-3 and -1e-3 <= place <= 32.001
    histogram("t", [HistogramGroup("kept", values, "kept")], limit=(side, at))


@pytest.mark.parametrize(("side", "beside"), [(">", -1), ("<=", -1), ("<", 0), (">=", 0)])
def test_a_value_that_is_the_threshold_stands_on_the_side_its_rule_puts_it_on(side: str, beside: int):
    low, high = chart._bar_range([0.0, 0.5, 1.0], (side, 0.5), 32)
    at = round((0.5 - low) / (high - low) * 32)
    counts = chart._count([0.5], low, high, 32, (side, 0.5))
    assert counts.index(1) == at + beside and sum(counts) == 1


def test_what_is_counted_has_whole_numbers_beside_it():
    line = [ChartLine("clips", [(0.0, 0.0), (1.0, 2.0)], "kept")]
    told = line_chart("t", line, x_label="x", zero=True, whole=True)
    assert ">1.5<" not in told and ">2<" in told


def test_the_side_that_a_rule_drops_is_the_one_shaded():
    group = [HistogramGroup("kept", [float(i) for i in range(100)], "kept")]
    left = re.search(r'class="gone" x="([\d.]+)%" width="([\d.]+)%"', histogram("t", group, limit=("<", 20)))
    right = re.search(r'class="gone" x="([\d.]+)%" width="([\d.]+)%"', histogram("t", group, limit=(">", 20)))
    assert left and right
    assert float(left[1]) == 0 and float(left[2]) < float(right[2])


def test_thinning_keeps_the_ends_and_every_peak():
    points = [(float(i), math.sin(i / 9)) for i in range(20_000)]
    points[7_777] = (7_777.0, 50.0)
    kept = thin(points)
    assert len(kept) < 600 and kept[0] == points[0] and kept[-1] == points[-1]
    assert (7_777.0, 50.0) in kept
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)


def test_smoothing_leaves_a_constant_alone_and_does_not_lag_behind_a_slope():
    constant = [(float(i), 3.0) for i in range(50)]
    assert all(y == pytest.approx(3.0) for _, y in smooth(constant, 5))
    slope = [(float(i), float(i)) for i in range(200)]
    assert dict(smooth_both_ways(slope, 5))[100.0] == pytest.approx(100.0, abs=0.1)
    assert dict(smooth(slope, 5))[100.0] < 95


def test_no_values_make_a_sentence_and_hostile_titles_stay_text():
    html = line_chart("<script>", [ChartLine("", [])], x_label="step")
    assert "no finite value" in html and "<script>" not in html


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.2, "0.2"), (2e-4, "2e-4"), (1500, "1,500"), (3e6, "3e6"),
                                             (0.30000000000000004, "0.3"), (-0.5, "-0.5")])  # fmt: skip
def test_tick_labels_are_short(value: float, text: str):
    assert tick_text(value) == text


def test_a_count_by_threshold_is_drawn_in_steps():
    points = [(0.0, 4.0), (1.0, 2.0), (2.0, 0.0)]
    paths = {
        steps: re.findall(r'd="([^"]*)"', str(line_chart("t", [ChartLine("", points, steps=steps)], x_label="x")))[0]
        for steps in ("", "before", "after")
    }
    moves = {steps: re.sub(r"[\d. ]", "", path) for steps, path in paths.items()}
    assert moves == {"": "MLL", "before": "MVHVH", "after": "MHVHV"}


def test_charts_beyond_the_first_are_folded_and_none_is_lost():
    charts = [Markup(f"<i>{number}</i>") for number in range(5)]
    shown, _, folded = str(grid(charts, 3)).partition("<details>")
    assert re.findall(r"<i>(\d)", shown) == ["0", "1", "2"] and re.findall(r"<i>(\d)", folded) == ["3", "4"]
    assert "2 more" in folded and "<details>" not in str(grid(charts, 5))
