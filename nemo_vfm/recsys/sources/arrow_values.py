"""Converts columns of Arrow of many types to sessions, times, numbers and ids.

Shape letters: L rows of the batch, N values.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.recsys.sources.log_reading import LogRows
from nemo_vfm.sparse.jagged import Jagged


@dataclass(frozen=True, slots=True, eq=False)
class ArrowRows:
    """Rows of a Parquet file. Columns are converted when asked for; rows that do not convert are refused."""

    rows: LogRows  #: all of the batch
    batch: Any  #: a `pyarrow.RecordBatch`

    def times(self, name: str) -> Tensor:
        """Integers, dates or times: int64, (L,). A null is refused."""
        column = self._column(name)
        if _is_text(column.type):
            raise UserError(
                f"{self._type_sentence(name, column)}, but integers, dates or timestamps were expected as times"
            )
        return self.keys(name)

    def keys(self, name: str) -> Tensor:
        """Integers, hashes of strings, dates or times: int64, (L,). A null is refused."""
        column = self._column(name)
        self.rows.refuse(_nulls(column), f"{name} is null")
        return torch.from_numpy(_integers(column, self._type_sentence(name, column)))

    def numbers(self, name: str, *, required: bool) -> Tensor:
        """Numbers or booleans: float32, (L,). A null is NaN; where it is required, NaN is refused."""
        import pyarrow as pa
        import pyarrow.types as types

        column = self._column(name)
        kind = column.type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind)):
            raise UserError(f"{self._type_sentence(name, column)}, but numbers or booleans were expected")
        column = column.cast(pa.uint8()) if types.is_boolean(kind) else column
        found = column.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False).astype(np.float32)
        if required:
            self.rows.refuse(np.isnan(found), f"{name} is null or NaN")
        return torch.from_numpy(found)

    def ids(self, name: str) -> Jagged:
        """Ids, alone or in lists, integers or hashes of strings; an empty row for null. Those of a map have weights."""
        import pyarrow as pa
        import pyarrow.types as types

        column = self._column(name)
        said, valid_L = self._type_sentence(name, column), ~_nulls(column)
        if not hasattr(column, "value_lengths"):
            values = _integers(column.drop_null(), said)
            return Jagged(torch.from_numpy(values), torch.from_numpy(valid_L.astype(np.int64)))
        is_map = types.is_map(column.type)
        if is_map:  # as lists of pairs: Arrow measures and flattens no maps
            keys, numbers = column.type.key_type, column.type.item_type
            if not (types.is_integer(numbers) or types.is_floating(numbers)):
                raise UserError(f"{said}, but a map of ids to numbers was expected")
            column = column.cast(pa.list_(pa.struct([("id", keys), ("weight", pa.float32())])), safe=False)
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        values, weights = column.flatten(), None
        owners = np.repeat(np.arange(len(lengths)), lengths)
        if is_map:
            values, weights = values.field(0), values.field(1).to_numpy(zero_copy_only=False)
            self.rows.refuse(np.unique(owners[~np.isfinite(weights)]), f"{name} has a weight that is null or infinite")
        if values.null_count:
            self.rows.refuse(np.unique(owners[_nulls(values)]), f"{name} has a null in its list")
        return Jagged(
            torch.from_numpy(_integers(values, said)), torch.from_numpy(lengths),
            None if weights is None else torch.tensor(weights),
        )  # fmt: skip

    def _column(self, name: str) -> Any:
        column = self.batch.column(name)
        return column.dictionary_decode() if hasattr(column, "dictionary_decode") else column

    def _type_sentence(self, name: str, column: Any) -> str:
        return f"column {name} of {self.rows.file} is of the type {column.type}"


def _nulls(column: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return found


def _integers(column: Any, said: str) -> NDArray[np.int64]:
    """0 for null; an unsigned number beyond int64 is the number with the same bits."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    kind = column.type
    if hasattr(column, "dictionary_decode"):
        column, kind = column.dictionary_decode(), kind.value_type
    if _is_text(kind):
        encoded = column.cast(pa.large_binary()).dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        hashes = np.array([*map(text_hash, texts), 0], np.int64)
        return np.asarray(hashes[encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)], np.int64)
    if types.is_temporal(kind):
        column = column.cast(pa.int32() if types.is_date32(kind) or types.is_time32(kind) else pa.int64())
    elif not types.is_integer(kind):
        raise UserError(f"{said}, but integers, strings or flat lists of them were expected")
    numbers = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return np.asarray(numbers.astype(np.int64))


def _is_text(kind: Any) -> bool:
    import pyarrow.types as types

    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary))


def text_hash(text: bytes) -> int:
    """The same number for the same text on any machine: the first 64 bits of its BLAKE2b."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)
