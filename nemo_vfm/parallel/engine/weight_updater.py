"""Updates this rank's parameters by an optimizer, on its own shards.

An update of one number from its own gradient and moments does not depend on where the others are. So AdamW and its kind
run on local, plain tensors: no dispatch, and no trouble with parameters that lie on different meshes. An optimizer that
uses whole matrices (Muon, Shampoo) would compute something else on parts: a trial finds it, and it is refused.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.apply.local_shard import local, spread
from nemo_vfm.parallel.checkpoint.checkpoint_optimizer import restored
from nemo_vfm.parallel.checkpoint.checkpoint_pieces import in_layout_of
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import ALONE
from nemo_vfm.parallel.engine import gradients
from nemo_vfm.parallel.engine.updater import keep_initial_lrs, scale_lrs
from nemo_vfm.parallel.plan.mesh import Mesh
from nemo_vfm.parallel.plan.static_memory import OptimizerFactory
from nemo_vfm.parallel.ranks.gather import Gather


class WeightUpdater:
    """Updates the parameters of one rank, whole or parts of them; an `Updater`.

    Args:
        factory: builds the optimizer over parameters.
        model: this rank's part, split and sharded.
        mesh: of the ranks; None on one.
        offload: keep the optimizer's state and the weights it updates in host memory; they travel once a step, each
            way.

    Raises:
        UserError: parameters are parts, and the optimizer needs them whole.
    """

    group = "optimizer"

    def __init__(self, factory: OptimizerFactory, model: nn.Module, mesh: Mesh | None, *, offload: bool) -> None:
        self._model, self._mesh, self._holding = model, mesh, gradients.held(model, mesh)
        learning = {one.name: one.parameter for one in self._holding if one.parameter.requires_grad}
        if any(spread(parameter) is not None for parameter in learning.values()):
            _require_elementwise(factory)
        self._whole = learning
        self._own = {name: _own(parameter, offload) for name, parameter in learning.items()}
        #: What is updated beside the model's own parameters: local parts of them, or copies in host memory.
        self._parts = [(own, learning[name]) for name, own in self._own.items() if own is not learning[name]]
        self.optimizer = factory(list(self._own.items()))
        keep_initial_lrs(self.optimizer)
        #: FSDP gives means where sums are wanted: over so many ranks.
        self._averaged = 1 if mesh is None or mesh.sharding is None else mesh.sharding.size()
        self._stale = True

    def begin(self) -> None:
        """See `Updater`."""
        for one in self._holding:
            one.parameter.grad = None

    def reduce(self) -> None:
        """See `Updater`; FSDP has summed over the ranks that share weights."""
        if self._mesh is not None:
            gradients.sum_partial(self._holding, self._mesh)

    def squared_norm(self) -> float:
        """See `Updater`."""
        return gradients.square_sum(self._holding) * self._averaged**2

    def discard(self) -> None:
        """See `Updater`; the next step drops the gradients, which until then may be looked at."""

    def set_lr(self, lr_factor: float) -> None:
        """See `Updater`."""
        scale_lrs(self.optimizer, lr_factor)

    def gradients(self) -> dict[str, Tensor]:
        """See `DenseUpdater`."""
        return {name: p.grad for name, p in self._model.named_parameters() if p.grad is not None}

    @torch.no_grad()
    def apply(self, divisor: float, clip_factor: float) -> None:
        """See `Updater`."""
        gradients.scale(self._holding, clip_factor * self._averaged / divisor)
        self._catch_up()
        for own, whole in self._parts:
            own.grad = None if whole.grad is None else local(whole.grad).to(own.device, own.dtype)
        self.optimizer.step()
        for own, whole in self._parts:
            own.grad = None  # else it would outlive the model's, into the next step
            if own.device != whole.device or own.data_ptr() != local(whole).data_ptr():
                local(whole).copy_(own)

    def _catch_up(self) -> None:
        """Begin with what the model holds now: a checkpoint or a warm start may have filled it since it was copied."""
        for own, whole in self._parts if self._stale else ():
            own.copy_(local(whole))
        self._stale = False

    def state(self) -> dict[str, Tensor]:
        """The optimizer's, as `parameter name/key`; what has a parameter's shape lies as the parameter does."""
        names = {id(own): name for name, own in self._own.items()}
        return {
            f"{names[id(own)]}/{key}": in_layout_of(torch.as_tensor(value), self._whole[names[id(own)]])
            for own, state in self.optimizer.state.items()
            for key, value in state.items()
        }

    def load(self, state: Mapping[str, Tensor], ranks: Gather = ALONE) -> None:
        """The inverse of `state`, of which each rank reads its part; every rank must call it.

        Args:
            state: whole ones by name; what belongs to another pipeline stage is not read.

        Raises:
            CorruptCheckpoint: state of a parameter that no rank has.
        """
        found = restored(state, self._whole, ranks)
        self._stale = True
        self.optimizer.state.clear()
        for name, values in found.items():
            own = self._own[name]
            self.optimizer.state[own] = {key: self._placed(value, own) for key, value in values.items()}

    def _placed(self, value: Tensor, own: Tensor) -> Tensor:
        """Move a state to the weights' device; a step count moves only if the optimizer is fused or capturable."""
        fused = any(group.get("fused") or group.get("capturable") for group in self.optimizer.param_groups)
        return value.to(own.device) if value.dim() or fused else value


def _own(parameter: nn.Parameter, offload: bool) -> nn.Parameter:
    if offload:
        host = local(parameter.detach()).to("cpu", copy=True)
        return nn.Parameter(host.pin_memory() if parameter.device.type == "cuda" else host)
    return parameter if spread(parameter) is None else nn.Parameter(local(parameter.detach()))


def _require_elementwise(factory: OptimizerFactory) -> None:
    """Try the optimizer on a small matrix and on its halves: both must come to the same.

    Raises:
        UserError: they do not.
    """
    draw = torch.Generator().manual_seed(0)
    start, grads = torch.randn(8, 6, generator=draw), [torch.randn(8, 6, generator=draw) for _ in range(3)]
    whole = _tried(factory, [start], [[grad] for grad in grads])
    halves = _tried(factory, _halves(start), [_halves(grad) for grad in grads])
    if not torch.allclose(whole, halves, rtol=1e-5, atol=1e-7):
        name = type(factory([("weight", nn.Parameter(start.clone()))])).__name__
        raise UserError(
            f"{name} needs whole matrices, but this plan shards them, so the result would depend on the layout. Use "
            f"an element-wise optimizer such as AdamW, or parallel.shard=1 and tensor=1."
        )


def _halves(matrix: Tensor) -> list[Tensor]:
    return list(torch.tensor_split(matrix, 2))


def _tried(factory: OptimizerFactory, pieces: list[Tensor], grads: list[list[Tensor]]) -> Tensor:
    parameters = [nn.Parameter(piece.clone()) for piece in pieces]
    optimizer = factory([(f"weight{number}", parameter) for number, parameter in enumerate(parameters)])
    for step in grads:
        for parameter, grad in zip(parameters, step, strict=True):
            parameter.grad = grad.clone()
        optimizer.step()
    return torch.cat([parameter.detach() for parameter in parameters])
