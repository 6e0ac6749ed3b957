"""Maps one of our parameters to another library's tensors, and back, without changing a bit of any number.

Letters: D width, H heads, E head dimension, C channels.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TensorMap:
    """How a parameter is kept elsewhere."""

    names: tuple[str, ...]  #: of the tensors there
    join: Callable[[Sequence[Tensor]], Tensor]  #: makes the parameter from them
    split: Callable[[Tensor], list[Tensor]]  #: makes them from the parameter


def alias(name: str) -> TensorMap:
    """The same numbers under another name."""
    return TensorMap((name,), lambda parts: parts[0], lambda whole: [whole])


def reshape_map(name: str, ours: Sequence[int], theirs: Sequence[int]) -> TensorMap:
    """The same numbers in another shape."""
    return TensorMap((name,), lambda parts: parts[0].reshape(tuple(ours)), lambda whole: [whole.reshape(tuple(theirs))])


def by_head(names: Sequence[str], head_dim: int, turned: Collection[int] = ()) -> TensorMap:
    """Projections side by side there; here one matrix with rows ordered (head, projection, dimension).

    `turned` are places among them whose rotations are of neighbours there, and of halves here.
    """

    def join(parts: Sequence[Tensor]) -> Tensor:
        own = [halves(part, head_dim) if place in turned else part for place, part in enumerate(parts)]
        return torch.stack([_cut(part, head_dim) for part in own], 1).flatten(0, 2)

    def split(whole: Tensor) -> list[Tensor]:
        parts = [part.flatten(0, 1) for part in _cut(whole, len(names), head_dim).unbind(1)]
        return [neighbours(part, head_dim) if place in turned else part for place, part in enumerate(parts)]

    return TensorMap(tuple(names), join, split)


def patch_rows(name: str, patch: Sequence[int], order: str) -> TensorMap:
    """Rows of an output projection: there (`order`, such as "thw", then the channel), here (channel, t, h, w)."""
    sides = [patch["thw".index(axis)] for axis in order]
    there = [order.index(axis) for axis in "thw"]  # where each of ours is among theirs

    def join(parts: Sequence[Tensor]) -> Tensor:
        rows = parts[0].reshape(*sides, -1, *parts[0].shape[1:])
        return rows.permute(3, *there, *range(4, rows.ndim)).flatten(0, 3)

    def split(whole: Tensor) -> list[Tensor]:
        rows = _cut(whole, *patch)
        return [rows.permute(*(1 + "thw".index(axis) for axis in order), 0, *range(4, rows.ndim)).flatten(0, 3)]

    return TensorMap((name,), join, split)


def halves(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of heads whose rotations are of neighbours, as rows of heads whose rotations are of halves."""
    return _cut(rows, head_dim // 2, 2).transpose(1, 2).flatten(0, 2)


def neighbours(rows: Tensor, head_dim: int) -> Tensor:
    """The inverse of `halves`."""
    return _cut(rows, 2, head_dim // 2).transpose(1, 2).flatten(0, 2)


def rotary_halves_map(name: str, head_dim: int) -> TensorMap:
    """Numbers of heads whose rotations are of neighbours there and of halves here."""
    return TensorMap((name,), lambda parts: halves(parts[0], head_dim), lambda whole: [neighbours(whole, head_dim)])


def _cut(rows: Tensor, *sizes: int) -> Tensor:
    """Rows in groups of these sizes, as many as there are."""
    return rows.reshape(-1, *sizes, *rows.shape[1:])
