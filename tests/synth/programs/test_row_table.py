"""Tests that a table of rows loses no column and no message, whatever else the messages hold."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nemo_vfm.synth.programs.synthesize import row_table


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
    assert [one["note"] for one in found] == [None, "é"] and found[1]["messages"] == row(1)["messages"]
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


@pytest.mark.parametrize(("values", "kept"), [
    (["a", "é", None], True), ([1, 2.5, None], True), ([True, False, None], True), ([None] * 3, True),
    ([[{"role": "user", "content": "a"}], [], None], True), ([["a"], [1], None], False), (["a", 1, None], False),
    ([{"a": 1}, {"b": 2}, None], False), ([1, True, None], False), ([[], [], None], False), ([1 << 70, 1, None], False),
])  # fmt: skip
def test_texts_numbers_and_conversations_are_as_they_are_and_all_else_is_json(
    tmp_path: Path, values: list[Any], kept: bool
) -> None:
    found = [one["x"] for one in read(tmp_path / "x.parquet", [row(place, x=one) for place, one in enumerate(values)])]
    assert found == (values if kept else [None if one is None else json.dumps(one) for one in values])


def test_no_call_in_a_conversation_gets_arguments_of_another(tmp_path: Path) -> None:
    """A column has one type: of mappings with different keys, each would have all of them."""
    arguments = [{"song": "a"}, {"times": 2, "how": {"loud": True}}]
    calls = [[{"id": "1", "function": {"name": "f", "arguments": one}}] for one in arguments]
    found = read(tmp_path / "x.parquet", [row(place, {"role": "assistant", "content": None, "tool_calls": one})
                                          for place, one in enumerate(calls)])  # fmt: skip
    functions = [one["messages"][1]["tool_calls"][0]["function"] for one in found]
    assert [json.loads(one["arguments"]) for one in functions] == arguments
