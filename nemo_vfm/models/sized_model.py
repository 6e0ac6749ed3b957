"""Builds a model whose embedding tables take their sizes from the data of its training, where it asks for that."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar

from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.training_data import HasTableRows


class SizedModel:
    """Builds a model; where that has `rows: auto`, its tables get the rows that the data says."""

    def __init__(self, model: Factory[[], nn.Module], data: HasTableRows) -> None:
        self.model: Factory[[], nn.Module] = model
        self.data = data

    def __call__(self) -> nn.Module:
        """Build it."""
        token = _rows_of_data.set(self.data.table_rows)
        try:
            return self.model()
        finally:
            _rows_of_data.reset(token)


def _unknown() -> Mapping[str, int]:
    raise UserError("no data is beside the model here")


_rows_of_data: ContextVar[Callable[[], Mapping[str, int]]] = ContextVar("rows of data", default=_unknown)


def rows_of_data() -> Mapping[str, int]:
    """Of each feature the rows of its table, by the data of the training that is being built."""
    try:
        return _rows_of_data.get()()
    except UserError as error:
        raise UserError(f"rows is auto, so the data gives them, and {error}, or give numbers") from error
