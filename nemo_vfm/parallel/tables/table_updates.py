# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Ends a step for the embedding tables of a model: exchanges gradients, measures their norm, updates rows.

Every data rank holds all tables. Ranks exchange the ids and the gradients of the bags, and each updates the same rows
with the same sums.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from nemo_vfm.parallel.plan.mesh import Mesh
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.ranks.gather import Gather
from nemo_vfm.sparse.tables.fused_tables import tables_of
from nemo_vfm.sparse.tables.packed_gradients import PackedGradients

Clip = Literal["all", "dense"]


class TableUpdates:
    """The tables of one rank's model, as the engine sees them; a model without tables has none, and nothing happens.

    Args:
        model: with the tables on their device.
        mesh: of the ranks; None on one.
    """

    def __init__(self, model: nn.Module, mesh: Mesh | None) -> None:
        self._tables, self._mesh = tables_of(model), mesh

    def forget(self) -> None:
        """Drop gradients: before a step, and where it is refused."""
        for tables in self._tables.values():
            tables.forget()

    def exchange(self) -> None:
        """Bring the gradients of all ranks to each; every rank must call it."""
        for tables in self._tables.values() if self._mesh is not None else ():
            tables.exchange(self._gathered)

    def norm_with(self, dense: float, weight: float, clip: Clip) -> float:
        """The norm that gradients are clipped by, not finite where any gradient is not.

        Args:
            dense: norm of the mean gradients of the parameters.
            weight: what the summed gradients of rows are divided by.
            clip: whether the rows' gradients count.
        """
        if clip == "all":
            squares = (float(tables.squared_norm(weight)) for tables in self._tables.values())
            return math.hypot(dense, *map(math.sqrt, squares))
        return dense if all(tables.has_finite_gradients() for tables in self._tables.values()) else math.nan

    def update(self, weight: float, clip_factor: float, lr_factor: float) -> None:
        """Change each touched row once, by its summed gradient / weight * clip_factor."""
        for tables in self._tables.values():
            tables.update(weight, None if clip_factor == 1.0 else clip_factor, lr_factor)

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's state; the rows are in the model's state."""
        return {
            f"{module}.{name}": tensor
            for module, tables in self._tables.items()
            for name, tensor in tables.optimizer_state().items()
        }

    def load(self, saved: Mapping[str, Tensor], ranks: Gather) -> None:
        """The inverse of `tensors`, once the rows are in place; every rank must call it.

        Raises:
            CorruptCheckpoint: state of other tables or of another optimizer.
        """
        own = self.tensors()
        if own.keys() != saved.keys():
            missing, unknown = sorted(own.keys() - saved.keys()), sorted(saved.keys() - own.keys())
            raise CorruptCheckpoint(
                "The checkpoint has the state of other embedding tables, or of a different optimizer for them: "
                f"missing {missing[:4]}, unknown {unknown[:4]}."
            )
        fill(own, saved, ranks)
        for module, tables in self._tables.items():
            tables.step = int(own[f"{module}.step"])
            tables.forget()

    def _gathered(self, own: PackedGradients) -> list[PackedGradients]:
        assert self._mesh is not None
        integers, floats = (_all_gather(one, self._mesh.world) for one in (own.integers_I, own.floats_F))
        by_rank = sorted(range(len(integers)), key=self._mesh.plan.data_rank)
        return [PackedGradients(integers[rank], floats[rank]) for rank in by_rank]


def require_data_parallel(model: nn.Module, plan: ParallelPlan) -> None:
    """Refuse a plan under which some ranks do not see whole samples, for a model with embedding tables.

    Raises:
        UserError: it has another axis than replicate and shard.
    """
    if plan.world != plan.data and tables_of(model):
        raise UserError(
            f"A model with embedding tables can be trained only by ranks that share the samples, but the plan is "
            f"{plan}. Use only parallel.replicate or parallel.shard."
        )


def _all_gather(own: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    """Each rank's tensor, of any length."""
    length = torch.tensor([len(own)], device=own.device)
    lengths = [torch.empty_like(length) for _ in range(group.size())]
    dist.all_gather(lengths, length, group=group)
    sizes = [int(one) for one in lengths]
    padded = torch.cat([own, own.new_zeros(max(sizes) - len(own))])
    found = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(found, padded, group=group)
    return [one[:size] for one, size in zip(found, sizes, strict=True)]
