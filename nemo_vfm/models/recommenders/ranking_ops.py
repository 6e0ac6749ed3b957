"""Counts what the lookups of a recommender read."""

from collections.abc import Mapping

from nemo_vfm.core.types.model_cost import Op
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.table_spec import DTYPES


def lookup_ops(tables: FusedTables, inputs: Mapping[str, tuple[int, ...]], on_unique_rows: bool) -> list[Op]:
    """One lookup a table, in bytes of rows read; each id counts, also one that comes again.

    Args:
        inputs: shapes of the batch, of a group's feature those of its unique rows.
        on_unique_rows: whether groups are looked up on unique rows. If not, their ids count as often as a mean row of
            them repeats: the shapes do not say how often each does.
    """
    samples = inputs["dense_BF"][0]
    return [
        Op(
            "lookup", 0.0, f"table {name}",
            bytes=sum(ids_read(inputs, feature, samples, on_unique_rows) for feature in spec.features)
            * spec.width * DTYPES[spec.dtype].itemsize,
        )
        for name, spec in tables.tables.items()
    ]  # fmt: skip


def ids_read(inputs: Mapping[str, tuple[int, ...]], feature: str, samples: int, on_unique_rows: bool) -> float:
    """How many ids of a feature are looked up, see `lookup_ops`; 0 of one that is not in the batch."""
    (values,), (rows,) = inputs.get(f"{feature}.values", (0,)), inputs.get(f"{feature}.lengths", (samples,))
    return float(values) if on_unique_rows or not rows else values * samples / rows
