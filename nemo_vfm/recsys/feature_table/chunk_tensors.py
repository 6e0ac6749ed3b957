"""Takes a chunk of a log apart into named tensors that safetensors can hold, and puts slices of them together again."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk

_NUMBERS, _WEIGHT = ("ids_B", "session_B", "time_B"), "weight_B"
_DENSE, _LABEL, _VALUES, _WEIGHTS, _LENGTHS = "dense/", "label/", "values/", "weights/", "lengths/"


def tensors_of(chunk: LogChunk) -> dict[str, Tensor]:
    """All columns by name; lengths as int32."""
    found = {name: getattr(chunk, name) for name in _NUMBERS}
    found |= {_DENSE + name: column for name, column in chunk.dense.items()}
    found |= {_LABEL + name: column for name, column in chunk.labels.items()}
    found |= {} if chunk.weight_B is None else {_WEIGHT: chunk.weight_B}
    for name, rows in chunk.features.items():
        found |= {_VALUES + name: rows.values_N, _LENGTHS + name: rows.lengths_B.to(torch.int32)}
        if rows.weights_N is not None:
            found[_WEIGHTS + name] = rows.weights_N
    return {name: tensor.contiguous() for name, tensor in found.items()}


def chunk_of(
    names: Sequence[str],
    part: Callable[[str, int, int], Tensor],
    rows: tuple[int, int],
    values: Mapping[str, tuple[int, int]],
) -> LogChunk:
    """The samples of a slice.

    Args:
        names: of all tensors.
        part: gives the slice of a tensor from its name, begin and end.
        rows: begin and end of the samples.
        values: begin and end of their values, by feature.
    """

    def columns(prefix: str) -> dict[str, Tensor]:
        found = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return {name: part(prefix + name, *rows) for name in found}

    features = {
        name: Jagged(
            part(_VALUES + name, *values[name]),
            lengths.to(torch.int64),
            part(_WEIGHTS + name, *values[name]) if _WEIGHTS + name in names else None,
        )
        for name, lengths in columns(_LENGTHS).items()
    }
    ids, session, time = (part(name, *rows) for name in _NUMBERS)
    weight = part(_WEIGHT, *rows) if _WEIGHT in names else None
    return LogChunk(ids, session, time, columns(_DENSE), columns(_LABEL), features, weight)


def chunk_bytes(chunk: LogChunk) -> int:
    """Bytes of all columns."""
    tensors = [chunk.ids_B, chunk.session_B, chunk.time_B, *chunk.dense.values(), *chunk.labels.values()]
    tensors += [] if chunk.weight_B is None else [chunk.weight_B]
    for rows in chunk.features.values():
        tensors += [one for one in (rows.values_N, rows.lengths_B, rows.weights_N) if one is not None]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
