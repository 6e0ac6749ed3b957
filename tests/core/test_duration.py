"""Tests that a length of training is what its words say, in every spelling, and in steps where these can be known."""

import pytest

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import UserError


@pytest.mark.parametrize(
    ("texts", "amount", "unit"),
    [
        (("1 step", "1 steps"), 1.0, "steps"),
        (("400_000 steps", "4e5 steps"), 400_000.0, "steps"),
        (("2 epochs", " 2epoch "), 2.0, "epochs"),
        (("3e9 tokens", "3_000_000_000 token", "3e+9 tokens"), 3e9, "tokens"),
        (("1_234_567 samples",), 1_234_567.0, "samples"),
        (("5 samples", "5 sample"), 5.0, "samples"),
        (("90 s", "90 seconds", "90 second", "1.5 min", "1.5 minutes"), 90.0, "s"),
        (("12 h", "12 hours", "12 hour"), 12.0, "h"),
    ],
)
def test_every_spelling_of_a_length_is_one_length(texts, amount, unit):
    assert [Duration.parse(text) for text in texts] == [Duration(amount, unit)] * len(texts)
    assert Duration.parse(str(Duration(amount, unit))) == Duration(amount, unit)


@pytest.mark.parametrize("text", ["", "3", "steps", "-1 steps", "0 steps", "3 days", "1e999 steps", "3 Steps", "1,5 h"])
def test_what_is_no_length_is_refused(text):
    with pytest.raises(UserError):
        Duration.parse(text)


def test_steps_are_whole_and_enough_and_unknown_where_only_the_clock_or_the_data_know():
    found = {text: Duration.parse(text).steps(samples=4, tokens=100) for text in (
        "7 steps", "8 samples", "9 samples", "1 sample", "800 tokens", "801 tokens", "2 epochs", "5 s", "1 h"
    )}  # fmt: skip
    assert [*found.values()] == [7, 2, 3, 1, 2, 3, None, None, None], found
