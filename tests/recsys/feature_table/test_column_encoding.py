# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that each column gets the encoding that stores it in the fewest bytes."""

import pyarrow as pa
import torch

from nemo_vfm.recsys.feature_table.column_encoding import smallest_encodings


def test_the_smallest_encoding_is_chosen():
    numbers = torch.Generator().manual_seed(0)
    few = torch.randint(0, 3, (4000,), generator=numbers) * 10**15
    columns = {
        "sample": torch.arange(4000) * 3, "feature/few": few, "dense/any": torch.rand(4000, generator=numbers),
    }  # fmt: skip
    columns = {name: pa.array(column.numpy()) for name, column in columns.items()} | {"run/a": pa.array([True] * 4000)}
    assert smallest_encodings(pa.table(columns), 3) == {
        "sample": "DELTA_BINARY_PACKED", "feature/few": "dictionary", "dense/any": "BYTE_STREAM_SPLIT",
        "run/a": "PLAIN",
    }  # fmt: skip
