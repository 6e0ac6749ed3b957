"""Finds the box of a tensor that this rank holds, and lays tensors out as others are over the devices.

Every layout of our engines gives a rank one box of a tensor: split along some dimensions, whole along others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from nemo_vfm.parallel.apply.local_shard import dtensor

Ints = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorBox:
    """A part of a tensor: where it begins along each dimension, and how far it goes."""

    offsets: Ints
    shape: Ints

    @property
    def volume(self) -> int:
        """How many values it holds."""
        return math.prod(self.shape)

    def intersect(self, other: "TensorBox") -> "TensorBox | None":
        """What both hold; None where that is nothing."""
        begin = tuple(map(max, self.offsets, other.offsets))
        ends = ([a + n for a, n in zip(box.offsets, box.shape, strict=True)] for box in (self, other))
        end = tuple(map(min, *ends))
        shape = tuple(b - a for a, b in zip(begin, end, strict=True))
        return TensorBox(begin, shape) if all(n > 0 for n in shape) else None

    def rows(self, begin: int, end: int) -> "TensorBox":
        """The part from row `begin` of it to row `end`."""
        return TensorBox((self.offsets[0] + begin, *self.offsets[1:]), (end - begin, *self.shape[1:]))

    def within(self, outer: "TensorBox") -> tuple[slice, ...]:
        """Where this lies in a tensor that holds `outer`."""
        begin = [a - b for a, b in zip(self.offsets, outer.offsets, strict=True)]
        return tuple(slice(a, a + n) for a, n in zip(begin, self.shape, strict=True))


def full_box(shape: Sequence[int]) -> TensorBox:
    """All of a tensor."""
    return TensorBox((0,) * len(shape), tuple(shape))


def local_box(name: str, tensor: Tensor) -> TensorBox | None:
    """The box of a tensor that this rank holds, None where it holds nothing; ValueError if it is a sum, or no box."""
    found = dtensor(tensor)
    if found is None:
        return full_box(tensor.shape)
    if (coordinate := found.device_mesh.get_coordinate()) is None:
        return None
    from torch.distributed.tensor.placement_types import Shard, _StridedShard

    # FSDP2 cuts what tensor parallelism has left, though its mesh dimension stands before that one. torch marks it as a
    # strided shard; so those come after all others, the innermost first.
    mesh, plain, late = found.device_mesh, list[tuple[int, int, int]](), list[tuple[int, int, int]]()
    for axis, placement in enumerate(found.placements):
        if isinstance(placement, _StridedShard):
            late.insert(0, (placement.dim, mesh.size(axis), coordinate[axis]))
        elif isinstance(placement, Shard):
            plain.append((placement.dim, mesh.size(axis), coordinate[axis]))
        elif placement.is_partial():
            raise ValueError(f"{name} is a partial sum, which cannot be saved; reduce it over devices first")
    offsets, shape = [0] * found.dim(), list(found.shape)
    for dim, count, number in (*plain, *late):  # in the order in which the tensor was really cut
        dim %= max(found.dim(), 1)
        size = -(-shape[dim] // count)  # as torch.chunk: the last ones are shorter, or empty
        begin = min(number * size, shape[dim])
        offsets[dim], shape[dim] = offsets[dim] + begin, min(size, shape[dim] - begin)
    box = TensorBox(tuple(offsets), tuple(shape))
    if tuple(found._local_tensor.shape) != box.shape:
        raise ValueError(
            f"{name} of shape {tuple(found.shape)} over {found.placements} should leave {box.shape} on this rank, but "
            f"there is {tuple(found._local_tensor.shape)}: that layout cannot be saved"
        )
    return box if box.volume or not math.prod(found.shape) else None


def in_layout_of(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A rank's own part of something with a parameter's shape, as a tensor over the same devices.

    It stays on the device where it is: optimizer state may lie on the CPU while the parameter does not.
    """
    found = dtensor(parameter)
    if found is None or dtensor(tensor) is not None or tensor.dim() == 0 or tensor.shape != found._local_tensor.shape:
        return tensor
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    meta = TensorMeta(found.shape, found.stride(), tensor.dtype)
    spec = DTensorSpec(found.device_mesh, found.placements, tensor_meta=meta)
    return DTensor(tensor.detach(), spec, requires_grad=False)  # type: ignore[no-untyped-call]
