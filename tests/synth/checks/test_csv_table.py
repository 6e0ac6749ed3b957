"""Tests that a table is found in an answer whatever stands around it, and that what is no table is none."""

import pytest

from nemo_vfm.synth.checks.answer_data import table_in

TABLE = 'year,town,visits\n2020,"Bath, north",3\n2021,York,4'


@pytest.mark.parametrize("answer", [
    TABLE, f"```csv\n{TABLE}\n```", f"Here it is:\n\n{TABLE}\n\nI hope it helps.",
    f"Here:\n```\n{TABLE}\n```\nDone, or so.", TABLE.replace("year,town", "year, town "),
    f"{TABLE}\r\n".replace("\n", "\r\n"), f"\n\n  {TABLE}  ",
])  # fmt: skip
def test_a_table_is_found_and_written_anew(answer: str) -> None:
    assert table_in(answer, 2, 10) == TABLE


@pytest.mark.parametrize("answer", [
    "", "I cannot make tables, sorry.", TABLE.replace(",4", ""), "town,state\nBath,dry\nYork,wet", "a,b",
    TABLE.replace("visits", "year"), TABLE.replace("visits", ""), "2020\n2021\n2022", 'a,b\n"1,2\n3,4',
    "a|b\n1|2\n3|4",
])  # fmt: skip
def test_what_is_no_table_is_none(answer: str) -> None:
    assert table_in(answer, 2, 10) is None


def test_a_table_has_rows_within_bounds() -> None:
    assert table_in(TABLE, 3, 10) is None and table_in(TABLE, 1, 1) is None
