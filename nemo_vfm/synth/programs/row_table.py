# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Lays rows out as a table for Parquet."""

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from nemo_vfm.core.types.json_value import Json

#: What every row has in the same form; the rest becomes JSON.
_PLAIN = ("id", "messages", "seed", "licence", "truncated")


def row_table(rows: Sequence[Mapping[str, Json]]) -> pa.Table:
    """Rows as a table with a column for whatever any of them has.

    Texts and messages are as they are; what is of another form in each pipeline is JSON, with keys in their order. So
    are the further fields of messages where one field is of several types.
    """
    flat = [_columns(row) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    columns = {name: [row.get(name) for row in flat] for name in names}
    return pa.table({name: _messages(one) if name == "messages" else pa.array(one) for name, one in columns.items()})


def _columns(row: Mapping[str, Json]) -> dict[str, Json]:
    texts = {name: _text(value) for name, value in row.items() if name not in _PLAIN}
    return {name: row[name] for name in _PLAIN} | texts


def _messages(column: Sequence[Json]) -> pa.Array:
    try:
        array = pa.array(column)
        if "struct<>" not in str(array.type):  # of a field that is {} in all rows; Parquet has none
            return array
    except pa.ArrowException:  # given rows may have a number here and a text there
        pass
    return pa.array([[_with_texts(message) for message in messages] for messages in column])


def _with_texts(message: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value if name in ("role", "content") else _text(value) for name, value in message.items()}


def _text(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
