"""Tests that values of any kind become clean, bounded text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_vfm.report.parts.plain_text import clean, exact, figure, number, one_line, span, words


@given(st.text())
def test_clean_text_can_be_written_to_a_file_and_has_no_control_characters(text: str):
    out = clean(text)
    out.encode("utf-8")
    assert all(c in "\t\n" or c.isprintable() or not 0 <= ord(c) < 32 for c in out)


def test_long_text_is_cut_and_says_how_long_it_was():
    out = clean("x" * 1_000_000)
    assert len(out) < 700 and out.endswith("(cut, 1,000,000 characters)")


@pytest.mark.parametrize("value", [None, True, "3", float("nan"), float("inf"), 10**400, [], {}])
def test_what_is_not_a_finite_number_is_none(value: object):
    assert number(value) is None


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (12345, "12,345"), (0.21675, "0.217"), (150.27, "150.3"),
                                             (2e-5, "2.00e-5"), (None, "–")])  # fmt: skip
def test_figures_read_well(value: float | None, text: str):
    assert figure(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.84, "0.8 s"), (42.4, "42 s"), (59.7, "1 min 00 s"),
                                               (192, "3 min 12 s"), (18_420, "5 h 07 min"), (None, "–")])  # fmt: skip
def test_spans_of_time_carry_their_unit(seconds: float | None, text: str):
    assert span(seconds) == text


def test_exact_numbers_keep_what_adds_up():
    assert (exact(1234.5), exact(0), exact(0.1 + 0.2)) == ("1,234.5", "0", "0.3")


def test_any_json_value_fits_on_one_line():
    assert one_line({"a_b": [1, 2.5, None, True], "c": "x"}) == "a b 1, 2.5, none, yes, c x"


@pytest.mark.parametrize(("key", "text"), [
    ("duration_s", "duration (s)"), ("samples_per_s", "samples per s"), ("width_px", "width (px)"), ("s", "s"),
    ("mean_fps", "mean (fps)"), ("memory_gb", "memory (gb)"), ("losses", "losses"), ("num_s_tokens", "num s tokens"),
])  # fmt: skip
def test_the_unit_at_the_end_of_a_key_is_told_apart(key: str, text: str):
    assert words(key) == text
