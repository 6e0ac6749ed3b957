"""Computes the token grids of a model's samples, and adds up the arithmetic of all samples."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from nemo_vfm.core.types.model_cost import Op
from nemo_vfm.models.blocks.patch import Patch, grid_of
from nemo_vfm.models.blocks.rope import Grid


def grids_of(inputs: Mapping[str, tuple[int, ...]], patch: Patch) -> list[Grid]:
    """Of each sample, packed or of one shape."""
    if "sizes_N3" not in inputs:
        return [grid_of(inputs["latents_BCTHW"], patch)] * inputs["latents_BCTHW"][0]
    sides = iter(inputs["sizes_N3"])
    return [grid_of((1, 1, *size), patch) for size in zip(sides, sides, sides, strict=True)]


def added_up(ops: Iterable[Op]) -> list[Op]:
    """Those of one kind and name together, in the order in which they first come."""
    found: dict[tuple[str, str], Op] = {}
    for op in ops:
        before = found.get((op.kind, op.name))
        if before is not None:
            op = replace(op, flops=before.flops + op.flops, bytes=before.bytes + op.bytes)
        found[op.kind, op.name] = op
    return list(found.values())
