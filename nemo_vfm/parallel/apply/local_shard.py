"""Reads and writes this rank's shard of tensors that may be distributed over devices."""

import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def dtensor(tensor: Tensor) -> "DTensor | None":
    """The tensor where it is one over devices, else None.

    To import its class takes a second, and where nobody has there are none.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return None
    from torch.distributed.tensor import DTensor

    return tensor if isinstance(tensor, DTensor) else None


def local(tensor: Tensor) -> Tensor:
    """This rank's part, sharing its memory; a plain tensor is its own."""
    return tensor if (found := dtensor(tensor)) is None else found.to_local()


def local_storage(tensor: Tensor) -> Tensor:
    """What of a tensor lies on this rank, without its history; the same storage."""
    # to_local() would belong to its history, and waits for it.
    return tensor.detach() if (found := dtensor(tensor)) is None else found._local_tensor.detach()


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor on every rank that has a part of it, all of which must call this; a plain one is its own."""
    return tensor if (found := dtensor(tensor)) is None else found.full_tensor()


@torch.no_grad()
def copy_own(target: Tensor, whole: Tensor) -> None:
    """Copy into a tensor, or a part of one, what the whole has at its place."""
    local(target).copy_(_local_slice(target, whole))


@torch.no_grad()
def add_own(target: Tensor, whole: Tensor) -> None:
    """Add to a tensor, or a part of one, what the whole has at its place."""
    local(target).add_(_local_slice(target, whole).to(local(target)))


def _local_slice(target: Tensor, whole: Tensor) -> Tensor:
    if (found := dtensor(target)) is None:
        return whole
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(found.shape, found.device_mesh, found.placements)
    return whole[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]


def mismatch(own: Mapping[str, tuple[int, ...]], saved: Mapping[str, tuple[int, ...]]) -> str:
    """How the names and shapes of a model and of a checkpoint differ; empty where they do not."""
    shapes = [f"{n} {saved[n]}, here {own[n]}" for n in sorted(own.keys() & saved.keys()) if saved[n] != own[n]]
    kinds = {
        "missing": sorted(own.keys() - saved.keys()), "unknown": sorted(saved.keys() - own.keys()),
        "other shape": shapes,
    }  # fmt: skip
    return "; ".join(f"{kind}: {some(names)}" for kind, names in kinds.items() if names)


def some(names: Collection[str], most: int = 4) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(list(names)[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
