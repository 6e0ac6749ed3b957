"""Tests that the launcher's tables keep names whole and fit the terminal where possible."""

import pytest

from launcher.columns import names_first

ROWS = [("run", "launch", "now"), ("runs/a_long_name_of_an_experiment", "8266cf92eacd", "done")]


@pytest.mark.parametrize(("columns", "lines"), [(50, 4), (54, 2), (120, 2)])
def test_rows_that_are_too_wide_have_their_names_above(columns, lines, capsys):
    names_first(ROWS, columns)
    told = capsys.readouterr().out
    assert len(told.splitlines()) == lines and max(map(len, told.splitlines())) <= columns
    assert told.split() == [cell for row in ROWS for cell in row]
