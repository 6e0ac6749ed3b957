"""Closes the steps of the amax histories of delayed scaling in FP8, and keeps them in checkpoints."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nemo_vfm.core import log
from nemo_vfm.parallel.apply.local_shard import mismatch
from nemo_vfm.parallel.checkpoint.checkpoint_reader import gather_shapes, put, shapes_of
from nemo_vfm.parallel.engine.step_runner import Updater
from nemo_vfm.parallel.fp8.operands import all_reduce_amax
from nemo_vfm.parallel.fp8.use_fp8 import fp8_linears, histories
from nemo_vfm.parallel.plan.mesh import Mesh
from nemo_vfm.parallel.ranks.gather import Gather

_OFF = ".in_bf16"


class HistoryUpdater(Updater):
    """Closes the steps of delayed scaling's histories; an `Updater` without gradients.

    Linears without a history have only their marks.
    """

    group = "fp8"

    def __init__(self, model: nn.Module, mesh: Mesh | None) -> None:
        self._model, self._mesh = model, mesh

    def apply(self, divisor: float = 1.0, clip_factor: float = 1.0) -> None:
        """End the step of every history, with the largest amax that any rank has seen; every rank must call it.

        Ranks of other pipeline stages have other linears. All others see parts of the same tensors, or other samples.
        """
        found = list(histories(self._model).values())
        if not found:
            return
        seen = torch.stack([history.amax[:, 0] for history in found])
        mesh = self._mesh  # the groups of ranks that have this rank's blocks
        groups = [] if mesh is None or mesh.sharding is None else mesh.sharding.get_all_groups()
        for group in [*groups, None if mesh is None else mesh.tensor]:
            seen = all_reduce_amax(seen, group)
        for history, amax in zip(found, seen, strict=True):
            history.amax[:, 0] = amax
            history.close_step()

    def discard(self) -> None:
        """Forget what histories saw of a step whose update was left out."""
        for history in histories(self._model).values():
            history.drop_step()

    def state(self) -> dict[str, Tensor]:
        """Factors (3,) and amax (3, length) of each history, and a mark for each linear that was taken out of FP8."""
        marks = {f"{name}{_OFF}": torch.ones(1) for name, linear in fp8_linears(self._model) if not linear.is_on}
        return self._histories() | marks

    def load(self, state: Mapping[str, Tensor], ranks: Gather) -> None:
        """The inverse of `state`; a training that was not in FP8 by this recipe before begins with empty histories."""
        for name, linear in fp8_linears(self._model):
            linear.is_on = linear.is_on and f"{name}{_OFF}" not in state
        own, there = self._histories(), {n: shape for n, shape in shapes_of(state).items() if not n.endswith(_OFF)}
        if (shapes := gather_shapes(own, ranks)) and mismatch(shapes, there):
            log.warn("the checkpoint has no amax histories for these linears and this length, so they start empty")
        elif shapes:
            put(own, state, ranks)

    def _histories(self) -> dict[str, Tensor]:
        return {
            f"{name}.{kind}": tensor
            for name, history in histories(self._model).items()
            for kind, tensor in (("factor", history.factor), ("amax", history.amax))
        }
