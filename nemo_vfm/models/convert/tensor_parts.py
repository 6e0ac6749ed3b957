"""Gives parts of a source's tensors, such as one layer of a stack, names of their own; each is read by itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.dcp_folder import DcpFolder
from nemo_vfm.models.convert.tensor_source import Box, TensorHeader, TensorSource
from nemo_vfm.parallel.checkpoint import tensor_file


@dataclass(frozen=True, slots=True)
class _Part:
    """A box of a tensor, less its first axis where that counts layers."""

    tensor: str
    box: Box
    of_stack: bool


class TensorParts:
    """Tensors by name, those of the source or parts of them.

    Args:
        source: of the tensors; of a distributed checkpoint, only the chunks that a part touches are read.
    """

    def __init__(self, source: TensorSource) -> None:
        self._source, self._parts = source, dict[str, _Part]()
        for name in source.keys():  # noqa: SIM118 (no mapping)
            shape = source.get_slice(name).get_shape()
            self._parts[name] = _Part(name, tuple((0, length) for length in shape), False)

    def keys(self) -> list[str]:
        return list(self._parts)

    def get_slice(self, name: str) -> TensorHeader:
        part = self._parts[name]
        header = self._source.get_slice(part.tensor)
        dtype = tensor_file.DTYPES[kind] if (kind := header.get_dtype()) in tensor_file.DTYPES else header.dtype
        return TensorHeader(dtype, tuple(stop - start for start, stop in part.box[part.of_stack :]))

    def get_tensor(self, name: str) -> Tensor:
        part = self._parts[name]
        if isinstance(self._source, DcpFolder):
            found = self._source.get_box(part.tensor, part.box)
        else:
            found = self._source.get_tensor(part.tensor)[tuple(slice(*span) for span in part.box)]
        return (found[0] if part.of_stack else found).contiguous()

    def unstack(self, name: str, names: Sequence[str]) -> None:
        """Replace a tensor by its rows along the first axis."""
        part = self._parts.pop(name)
        for number, row in enumerate(names):
            if row in self._parts:
                raise DataError(f"it holds {row[:200]} alone and in the stack {name[:200]}")
            self._parts[row] = _Part(part.tensor, ((number, number + 1), *part.box[1:]), True)

    def cut(self, name: str, boxes: Sequence[Box]) -> list[str]:
        """Replace a tensor by boxes of it; their names, such as `up.weight[0:4, 8:12]`.

        Numbers outside all boxes can no longer be reached.
        """
        part = self._parts.pop(name)
        names = [f"{name}[{', '.join(f'{start}:{stop}' for start, stop in box)}]" for box in boxes]
        for called, box in zip(names, boxes, strict=True):
            self._parts[called] = _Part(part.tensor, (*part.box[: part.of_stack], *box), part.of_stack)
        return names
