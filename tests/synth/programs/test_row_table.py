# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that a table of rows loses no column and no message, whatever else the messages hold."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nemo_vfm.synth.programs.row_table import row_table


def row(number: int, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    facts = {"id": f"0-{number}", "messages": [{"role": "user", "content": "a"}, *messages], "seed": 0, "licence": ""}
    return {**facts, "truncated": 0, **more}


def read(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pq.write_table(row_table(rows), path)
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def test_a_column_that_only_a_later_row_has_is_a_column(tmp_path: Path) -> None:
    found = read(tmp_path / "x.parquet", [row(0, scores={"b": 1, "a": 2}), row(1, note="é")])
    assert [one["scores"] for one in found] == ['{"b": 1, "a": 2}', None]
    assert [one["note"] for one in found] == [None, '"é"'] and found[1]["messages"] == row(1)["messages"]
    assert read(tmp_path / "x.parquet", []) == []


@pytest.mark.parametrize("values", [("x", 1), ({"a": 1}, {"a": "b"}), ({}, {}), ([1], [{"a": {}}])])
def test_fields_of_messages_that_have_no_common_type_are_json(tmp_path: Path, values: tuple[Any, Any]) -> None:
    rows = [row(place, {"role": "user", "content": "b", "name": value}) for place, value in enumerate(values)]
    found = read(tmp_path / "x.parquet", rows)
    assert [json.loads(one["messages"][1]["name"]) for one in found] == [*values]
    assert {one["messages"][1]["content"] for one in found} == {"b"}


def test_fields_of_messages_of_one_type_stay_what_they_are(tmp_path: Path) -> None:
    calls = [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]
    found = read(tmp_path / "x.parquet", [row(0), row(1, {"role": "assistant", "content": None, "tool_calls": calls})])
    assert found[1]["messages"][1] == {"role": "assistant", "content": None, "tool_calls": calls}
