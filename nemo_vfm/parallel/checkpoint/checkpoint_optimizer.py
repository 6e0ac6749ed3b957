"""Saves optimizer state as `parameter name/key`, and restores the part that belongs to this rank's parameters.

State with a parameter's shape is sharded like the parameter. Every parameter has its own step count. A shared one would
advance once per parameter, which shows only in the second step after a resume.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from nemo_vfm.core.errors import CorruptCheckpoint
from nemo_vfm.parallel.checkpoint import checkpoint_pieces as pieces
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import ALONE, exchange, together
from nemo_vfm.parallel.checkpoint.checkpoint_reader import SavedTensors, dtype_of, some
from nemo_vfm.parallel.ranks.gather import Gather

State = dict[str, dict[str, Tensor]]
Rows = Mapping[str, tuple[int, int]]


def named(state: Mapping[str, Mapping[str, Tensor]], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State by parameter name and key as `checkpoint.save` takes it; local tensors become parts of whole ones.

    Args:
        parameters: by name, as the model has them.
    """
    return {
        f"{name}/{key}": pieces.in_layout_of(value, parameters[name])
        for name, values in state.items()
        for key, value in values.items()
    }


def restored(
    saved: Mapping[str, Tensor], parameters: Mapping[str, Tensor], ranks: Gather = ALONE, rows: Rows | None = None
) -> State:
    """The state of this rank's parameters, by name and key, as plain tensors on the CPU; every rank must call it.

    Args:
        parameters: by name, as the model has them; under pipeline parallelism those of this rank.
        rows: of parameters, the first and the one after the last row that are read of what the rank holds; all of the
            others are.

    Raises:
        CorruptCheckpoint: there is state for a parameter that no rank has.
    """
    known = {name for names in exchange(ranks, list(parameters)) for name in names}
    if unknown := sorted({name.rpartition("/")[0] for name in saved} - known):
        raise CorruptCheckpoint(
            f"The checkpoint has optimizer state for {some(unknown)!r}; this model has no such parameter."
        )
    found: State = {}
    together(ranks, lambda: found.update(_restored(saved, parameters, rows or {})))
    return found


def _restored(saved: Mapping[str, Tensor], parameters: Mapping[str, Tensor], rows: Rows) -> State:
    found: State = {}
    for name in saved:
        parameter, _, key = name.rpartition("/")
        if parameter in parameters:
            found.setdefault(parameter, {})[key] = _value(saved, name, parameters[parameter], rows.get(parameter))
    return found


def _value(saved: Mapping[str, Tensor], name: str, parameter: Tensor, rows: tuple[int, int] | None) -> Tensor:
    read = saved if isinstance(saved, SavedTensors) else None
    if (read.shape(name) if read else tuple(saved[name].shape)) != tuple(parameter.shape):
        return saved[name].clone()  # a count, or what belongs to the whole parameter
    box = pieces.held(name, parameter)
    if box is None:  # more ranks than rows: this one has none
        return torch.empty(pieces.local(parameter).shape, dtype=dtype_of(saved, name))
    box = box if rows is None else box.rows(*rows)
    if read:
        return read.read(name, box.offsets, box.shape)
    return saved[name][box.within(pieces.whole(parameter.shape))].clone()
