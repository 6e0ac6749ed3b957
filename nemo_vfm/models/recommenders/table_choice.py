"""Makes the descriptions of a model's embedding tables from rows and one width, or takes those that are given."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Literal

from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.training_data import HasTableRows
from nemo_vfm.sparse.tables.table_spec import TableSpec

RowDtype = Literal["fp32", "bf16", "fp16"]
#: Of each feature the rows of a table of its own, or those that the data says.
Rows = Mapping[str, int] | Literal["auto"]


class SizedModel:
    """Builds a model; where that has `rows: auto`, its tables get the rows that the data says."""

    def __init__(self, model: Factory[[], nn.Module], data: HasTableRows) -> None:
        self.model: Factory[[], nn.Module] = model
        self.data = data

    def __call__(self) -> nn.Module:
        token = _rows_of_data.set(self.data.table_rows)
        try:
            return self.model()
        finally:
            _rows_of_data.reset(token)


def _unknown() -> Mapping[str, int]:
    raise UserError("no data is beside the model here")


_rows_of_data: ContextVar[Callable[[], Mapping[str, int]]] = ContextVar("rows of data", default=_unknown)


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
        try:
            found = _rows_of_data.get()()
        except UserError as error:
            raise UserError(f"rows is auto, so the data gives them, and {error}, or give numbers") from error
        rows = {name: count for name, count in found.items() if name not in others}
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
