"""Checks that samples have the columns of a table, and that they are in its order."""

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk


def only_columns(chunk: LogChunk, schema: TableSchema, *, at: int) -> LogChunk:
    """The columns of the schema, each of the right type and length.

    Args:
        at: number of the first sample in the table, for the message.

    Raises:
        DataError: one is missing, or of another type, or see `LogChunk.require_valid`.
    """
    for kind in ("dense", "labels", "features"):
        found = getattr(chunk, kind)
        if missing := [name for name in getattr(schema, kind) if name not in found]:
            raise DataError(
                f"the samples from row {at:,} lack {missing[0]} among the {kind}; they have {', '.join(found)}"
            )
    if schema.weight and chunk.weight_B is None:
        raise DataError(f"the samples from row {at:,} lack weights, but the table's samples have them")
    kept = LogChunk(
        chunk.ids_B, chunk.session_B, chunk.time_B, {name: chunk.dense[name] for name in schema.dense},
        {name: chunk.labels[name] for name in schema.labels},
        {name: chunk.features[name] for name in schema.features}, chunk.weight_B if schema.weight else None,
    )  # fmt: skip
    try:
        _require_types(kept)
        kept.require_valid()
        if weighted := [name for name in schema.windows if kept.features[name].weights_N is not None]:
            raise DataError(f"the window {weighted[0]} has weights, but a value would have a different one in each row")
    except DataError as error:
        raise DataError(f"the samples from row {at:,}: {error}") from error
    return kept


def require_order(chunk: LogChunk, before: tuple[int, int] | None, *, at: int) -> None:
    """Check that no session comes back, and no time inside of one goes back.

    Only the samples of one chunk are compared with each other. A session that comes back later is not seen; it stores
    its rows again.

    Args:
        before: session and time of the sample before, if any.
        at: number of the first sample in the table, for the message.

    Raises:
        DataError: one does.
    """
    sessions_B, times_B = chunk.session_B, chunk.time_B
    if before is not None:
        sessions_B = torch.cat([sessions_B.new_tensor([before[0]]), sessions_B])
        times_B = torch.cat([times_B.new_tensor([before[1]]), times_B])
        at -= 1
    same = sessions_B[1:] == sessions_B[:-1]
    if len(bad := (same & (times_B[1:] < times_B[:-1])).nonzero()):
        row = int(bad[0]) + 1
        raise DataError(
            f"row {at + row:,}: time {int(times_B[row])} of session {int(sessions_B[row])} is before "
            f"{int(times_B[row - 1])}, that of the previous row. Cluster the samples by session and order them by time."
        )
    begins = torch.nn.functional.pad(~same, (1, 0), value=True)
    runs = sessions_B[begins]
    first = dict[int, int]()
    if len(torch.unique(runs)) < len(runs):
        for session, row in zip(runs.tolist(), begins.nonzero().squeeze(1).tolist(), strict=True):
            if first.setdefault(session, row) != row:
                raise DataError(
                    f"row {at + row:,}: session {session} returns after others. Cluster the samples by session and "
                    "order them by time, or write them with clustered=False."
                )


def _require_types(chunk: LogChunk) -> None:
    integers = {"sample": chunk.ids_B, "session": chunk.session_B, "time": chunk.time_B}
    for name, column in integers.items():
        _require(name, column, torch.int64)
    weights = {} if chunk.weight_B is None else {"weight": chunk.weight_B}
    for name, column in {**chunk.dense, **chunk.labels, **weights}.items():
        _require(name, column, torch.float32)
    for name, rows in chunk.features.items():
        _require_jagged(name, rows)


def _require_jagged(name: str, rows: Jagged) -> None:
    _require(name, rows.values_N, torch.int64)
    _require(f"lengths of {name}", rows.lengths_B, torch.int64)
    if rows.weights_N is not None:
        _require(f"weights of {name}", rows.weights_N, torch.float32)


def _require(name: str, column: Tensor, dtype: torch.dtype) -> None:
    if column.dtype != dtype or column.dim() != 1 or column.device.type != "cpu":
        raise DataError(
            f"{name} is {column.dtype} of shape {tuple(column.shape)} on {column.device}, expected one {dtype} a row "
            "on the CPU"
        )
