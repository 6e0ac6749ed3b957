"""Updates the rows of a model's embedding tables, and takes rows and state over from a checkpoint that may have fewer.

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
from nemo_vfm.core.log import info, warn
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill, gather_shapes, put, shapes_of
from nemo_vfm.parallel.plan.mesh import Mesh
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.ranks.gather import Gather
from nemo_vfm.sparse.tables.fused_tables import tables_of
from nemo_vfm.sparse.tables.packed_gradients import PackedGradients

Clip = Literal["all", "dense"]


class TableUpdater:
    """Updates the embedding tables of one rank's model; an `Updater`. A model without tables has nothing to update.

    Args:
        model: with the tables on their device.
        mesh: of the ranks; None on one.
        clip: whether the rows' gradients count in the norm that is clipped, and are scaled (all), or only those of the
            other weights (dense).
    """

    group = "tables"

    def __init__(self, model: nn.Module, mesh: Mesh | None, clip: Clip) -> None:
        self._tables, self._mesh, self._clip, self._lr_factor = tables_of(model), mesh, clip, 1.0

    def begin(self) -> None:
        """See `Updater`."""
        self.discard()

    def reduce(self) -> None:
        """See `Updater`: bring the gradients of all ranks to each."""
        if self._mesh is None:
            return
        plan, world = self._mesh.plan, self._mesh.world

        def gather(own: PackedGradients) -> list[PackedGradients]:
            integers, floats = (_all_gather(one, world) for one in (own.integers_I, own.floats_F))
            by_rank = sorted(range(plan.world), key=plan.data_rank)
            return [PackedGradients(integers[rank], floats[rank]) for rank in by_rank]

        for tables in self._tables.values():
            tables.exchange(gather)

    def squared_norm(self) -> float:
        """See `Updater`; all ranks have the same gradients by now, so each counts its share."""
        if self._clip == "dense":
            return 0.0 if all(tables.has_finite_gradients() for tables in self._tables.values()) else math.nan
        ranks = 1 if self._mesh is None else self._mesh.plan.world
        return sum(float(tables.squared_norm(1.0)) for tables in self._tables.values()) / ranks

    def set_lr(self, lr_factor: float) -> None:
        """See `Updater`."""
        self._lr_factor = lr_factor

    def apply(self, divisor: float, clip_factor: float) -> None:
        """See `Updater`: each touched row changes once, however often it was looked up."""
        factor = clip_factor if self._clip == "all" and clip_factor != 1.0 else None
        for tables in self._tables.values():
            tables.update(divisor, factor, self._lr_factor)

    def discard(self) -> None:
        """See `Updater`."""
        for tables in self._tables.values():
            tables.forget()

    def state(self) -> dict[str, Tensor]:
        """The optimizer's; the rows are in the model's state."""
        return {
            f"{module}.{name}": tensor
            for module, tables in self._tables.items()
            for name, tensor in tables.optimizer_state().items()
        }

    def load(self, state: Mapping[str, Tensor], ranks: Gather) -> None:
        """The inverse of `state`, once the rows are in place; every rank must call it."""
        own = self.state()
        if own.keys() != state.keys():
            missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
            raise CorruptCheckpoint(
                "The checkpoint has the state of other embedding tables, or of a different optimizer for them: "
                f"missing {missing[:4]}, unknown {unknown[:4]}."
            )
        fill(own, state, ranks)
        for module, tables in self._tables.items():
            tables.step = int(own[f"{module}.step"])
            tables.forget()


def require_data_parallel(model: nn.Module, plan: ParallelPlan) -> None:
    """Refuse a plan under which some ranks do not see whole samples, for a model with embedding tables."""
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


Shapes = Mapping[str, tuple[int, ...]]


def grown_tables(model: nn.Module, here: Shapes, there: Shapes) -> dict[str, int]:
    """The weights of tables with more rows here than in a checkpoint, by name, and how many rows they have there."""
    names = [f"{module}.{table}.weight" for module, one in tables_of(model).items() for table in one.tables]
    known = [(name, here[name], there[name]) for name in names if name in here and name in there]
    found = {name: old[0] for name, new, old in known if old[0] < new[0] and old[1:] == new[1:]}
    for name, rows in found.items():
        info(f"{name.removesuffix('.weight')}: {rows:,} rows continue, {here[name][0] - rows:,} are new")
    return found


def take_table_state(model: nn.Module, saved: Mapping[str, Tensor], ranks: Gather) -> None:
    """Load what tables' optimizers know of the rows that are there, of none where none are; every rank must call it."""
    there = shapes_of(saved)
    for module, tables in tables_of(model).items():
        own = {f"{module}.{name}": tensor for name, tensor in tables.optimizer_state().items()}
        shapes = gather_shapes(own, ranks)
        fits = own.keys() == {name for name in there if name.startswith(f"{module}.")} and all(
            len(there[name]) == len(shapes[name])
            and there[name][1:] == shapes[name][1:]
            and (not shapes[name] or there[name][0] <= shapes[name][0])
            for name in own
        )
        if not fits:
            if there:
                warn(f"the optimizer of {module} differs from the one in start_from, so its state starts from zero")
            continue
        put({name: tensor[: there[name][0]] if tensor.dim() else tensor for name, tensor in own.items()}, saved, ranks)
        tables.step = int(own[f"{module}.step"])
