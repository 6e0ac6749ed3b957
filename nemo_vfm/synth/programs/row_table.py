"""Lays rows out as a table for Parquet."""

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.programs.row_program import is_conversation


def row_table(rows: Sequence[Mapping[str, Json]]) -> pa.Table:
    """Rows as a table with a column for whatever any of them has.

    Columns of texts, of numbers, of truth values and of conversations are as they are, as trainers read them. Any other
    is JSON, with keys in their order. So are the further fields of messages where one field is of several types.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: Sequence[Json]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    try:
        if kinds <= {str}:
            return pa.array(values, pa.string())
        if kinds == {bool} or kinds <= {int, float}:
            return pa.array(values)
    except (pa.ArrowException, OverflowError):  # a number of more than 64 bits
        pass
    if any(values) and all(value is None or value == [] or is_conversation(value) for value in values):
        return _conversations(values)
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _conversations(column: Sequence[Json]) -> pa.Array:
    column = [messages and [_with_openai_calls(message) for message in messages] for messages in column]
    try:
        array = pa.array(column)
        if "struct<>" not in str(array.type):  # of a field that is {} in all rows; Parquet has none
            return array
    except pa.ArrowException:  # given rows may have a number here and a text there
        pass
    return pa.array([messages and [_with_texts(message) for message in messages] for messages in column])


def _with_openai_calls(message: Mapping[str, Json]) -> dict[str, Json]:
    """Arguments of calls as JSON, which is OpenAI's form: as a mapping, each would get the names of all others."""
    match message:
        case {"tool_calls": list(calls)}:
            return {**message, "tool_calls": [_with_text_arguments(call) for call in calls]}
    return dict(message)


def _with_text_arguments(call: Json) -> Json:
    match call:
        case {"function": {"arguments": dict(arguments)} as function}:
            return {**call, "function": {**function, "arguments": _text(arguments)}}
    return call


def _with_texts(message: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value if name in ("role", "content") else _text(value) for name, value in message.items()}


def _text(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
