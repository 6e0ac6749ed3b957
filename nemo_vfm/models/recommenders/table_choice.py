"""Makes the descriptions of a model's embedding tables from rows and one width, or takes those that are given."""

from collections.abc import Iterable, Mapping
from typing import Literal

from nemo_vfm.models.sized_model import rows_of_data
from nemo_vfm.sparse.tables.table_spec import TableSpec

RowDtype = Literal["fp32", "bf16", "fp16"]
#: Of each feature the rows of a table of its own, or those that the data says.
Rows = Mapping[str, int] | Literal["auto"]


def chosen_tables(
    rows: Rows | None, width: int, dtype: RowDtype, tables: Mapping[str, TableSpec] | None,
    histories: Mapping[str, str] | None = None,
) -> dict[str, TableSpec]:  # fmt: skip
    """The tables of a model, by name.

    Args:
        rows: of each feature the rows of a table of its own, named like the feature; `auto` takes the data's features.
        width: of every table.
        dtype: of the tables made from `rows`.
        tables: described one by one, where features share some; in place of `rows`.
        histories: feature of a history -> feature in whose table its ids are rows; such a table gives sequences.
    """
    if (rows is None) == (tables is None):
        which = "one" if rows is None else "only one"
        raise ValueError(f"give rows (a table a feature) or tables (described one by one), {which} of them")
    histories = histories or {}
    if rows == "auto":
        others = {name for name, of in histories.items() if name != of}  # whose ids are rows of another's table
        rows = {name: count for name, count in rows_of_data().items() if name not in others}
    specs = dict(tables or {})
    for name, count in (rows or {}).items():
        own = tuple(history for history, of in histories.items() if of == name and history != name)
        pooling: Literal["sum", "sequence"] = "sequence" if own or name in histories else "sum"
        specs[name] = TableSpec(rows=count, width=width, features=(name, *own), pooling=pooling, dtype=dtype)
    for name, spec in specs.items():
        if spec.width != width:
            raise ValueError(f"table {name} has width {spec.width}, but the model takes vectors of {width} (width)")
    table_of = {feature: name for name, spec in specs.items() for feature in spec.features}
    for history, other in histories.items():
        if history not in table_of or table_of[history] != table_of.get(other):
            raise ValueError(f"the history {history} shares no table with {other}; tables are of {sorted(table_of)}")
        if specs[table_of[history]].pooling != "sequence":
            raise ValueError(f"table {table_of[history]} pools the history {history}; give it pooling: sequence")
    return specs


def features_of(specs: Iterable[TableSpec]) -> tuple[str, ...]:
    """All features that the tables look up, table by table."""
    return tuple(feature for spec in specs for feature in spec.features)


def other_features(specs: Mapping[str, TableSpec], histories: Mapping[str, str]) -> tuple[str, ...]:
    """The features that are neither histories nor what these are compared with."""
    if not histories:
        raise ValueError("history is empty; name at least one feature of a history and the one it is compared with")
    return tuple(name for name in features_of(specs.values()) if name not in {*histories, *histories.values()})
