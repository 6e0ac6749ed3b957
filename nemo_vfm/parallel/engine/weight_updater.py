"""Updates this rank's parameters by an optimizer, on its own shards.

An update of one number from its own gradient and moments does not depend on where the others are. So AdamW and its kind
run on local, plain tensors: no dispatch, and no trouble with parameters that lie on different meshes. An optimizer that
uses whole matrices (Muon, Shampoo) would compute something else on parts: a trial finds it, and it is refused.
"""

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.apply.local_shard import dtensor, local, local_storage
from nemo_vfm.parallel.checkpoint.checkpoint_pieces import in_layout_of
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import ALONE
from nemo_vfm.parallel.checkpoint.checkpoint_reader import restore_state
from nemo_vfm.parallel.engine.step_runner import TurnUpdater
from nemo_vfm.parallel.plan.mesh import Mesh
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import Divisible, OptimizerFactory, match_modules
from nemo_vfm.parallel.ranks.gather import Gather

_BUCKET_BYTES = 64 << 20  # of one all-reduce: few calls, and no second copy of all gradients


class WeightUpdater(TurnUpdater):
    """Updates the parameters of one rank, whole or parts of them; an `Updater`.

    Args:
        factory: builds the optimizer over parameters.
        model: this rank's part, split and sharded.
        mesh: of the ranks; None on one.
        offload: keep the optimizer's state and the weights it updates in host memory; they travel once a step, each
            way.
        child: the name of the model's child whose parameters are updated; empty for all of the model's.

    Raises:
        UserError: parameters are parts, and the optimizer needs them whole.
    """

    def __init__(
        self, factory: OptimizerFactory, model: nn.Module, mesh: Mesh | None, *, offload: bool, child: str = ""
    ) -> None:  # fmt: skip
        self.group = f"optimizer_{child}" if child else "optimizer"
        below = f"{child}." if child else ""
        self._holding = [one for one in owned_params(model, mesh) if one.name.startswith(below)]
        self._model, self._mesh = model, mesh
        learning = {one.name: one.parameter for one in self._holding if one.parameter.requires_grad}
        if any(dtensor(parameter) is not None for parameter in learning.values()):
            _require_elementwise(factory)
        self._is_spread = any(dtensor(one.parameter) is not None for one in self._holding)
        self._whole = learning
        self._own = dict[str, nn.Parameter]()
        for name, parameter in learning.items():
            self._own[name] = parameter
            if offload:
                host = local(parameter.detach()).to("cpu", copy=True)
                self._own[name] = nn.Parameter(host.pin_memory() if parameter.device.type == "cuda" else host)
            elif dtensor(parameter) is not None:
                self._own[name] = nn.Parameter(local(parameter.detach()))
        #: What is updated beside the model's own parameters: local parts of them, or copies in host memory.
        self._parts = [(own, learning[name]) for name, own in self._own.items() if own is not learning[name]]
        self.optimizer = factory(list(self._own.items()))
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
            sum_partial(self._holding, self._mesh)

    def squared_norm(self) -> float:
        """See `Updater`."""
        squares = [
            torch.linalg.vector_norm(own, dtype=torch.float64).square() / one.copies
            for one, own in self._own_gradients()
            if own.numel()
        ]
        return (float(torch.stack(squares).sum()) if squares else 0.0) * self._averaged**2

    def _own_gradients(self) -> list[tuple["ParamOwnership", Tensor]]:
        """This rank's parts of those that there are."""
        there = [(one, one.parameter.grad) for one in self._holding if one.parameter.grad is not None]
        return [(one, local(grad)) for one, grad in there] if self._is_spread else there

    def gradients(self) -> dict[str, Tensor]:
        """See `DenseUpdater`."""
        return {name: p.grad for name, p in self._model.named_parameters() if p.grad is not None}

    @torch.no_grad()
    def apply(self, divisor: float, clip_factor: float) -> None:
        """See `Updater`."""
        if (factor := clip_factor * self._averaged / divisor) != 1.0:
            torch._foreach_mul_([grad for _, grad in self._own_gradients()], factor)
        if self._stale:  # a checkpoint or a warm start may have filled the model since it was copied
            for own, whole in self._parts:
                own.copy_(local(whole))
            self._stale = False
        for own, whole in self._parts:
            own.grad = None if whole.grad is None else local(whole.grad).to(own.device, own.dtype)
        self.optimizer.step()
        for own, whole in self._parts:
            own.grad = None  # else it would outlive the model's, into the next step
            if own.device != whole.device or own.data_ptr() != local(whole).data_ptr():
                local(whole).copy_(own)

    def snapshot(self) -> Callable[[], None]:
        """See `TurnUpdater`; a copy takes the memory of the weights and of the optimizer's state."""
        weights = [(local_storage(whole), local_storage(whole).clone()) for whole in self._whole.values()]
        state = {own: copy.deepcopy(values) for own, values in self.optimizer.state.items()}
        # Some optimizers count in their groups.
        groups = [{key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
                  for group in self.optimizer.param_groups]  # fmt: skip

        def put_back() -> None:
            for weight, before in weights:
                weight.copy_(before)
            self._stale = True  # copies in host memory are of the weights that are gone
            self.optimizer.state.clear()
            self.optimizer.state.update(state)
            for group, settings in zip(self.optimizer.param_groups, groups, strict=True):
                group.update(settings)

        return put_back

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
        """
        found = restore_state(state, self._whole, ranks)
        self._stale = True
        self.optimizer.state.clear()
        # State lies where the weights do; a step count does only if the optimizer is fused or capturable.
        fused = any(group.get("fused") or group.get("capturable") for group in self.optimizer.param_groups)
        for name, values in found.items():
            own = self._own[name]
            self.optimizer.state[own] = {
                key: value.to(own.device) if value.dim() or fused else value for key, value in values.items()
            }


def _require_elementwise(factory: OptimizerFactory) -> None:
    """Try the optimizer on a small matrix and on its halves: both must come to the same."""
    draw = torch.Generator().manual_seed(0)
    start, grads = torch.randn(8, 6, generator=draw), [torch.randn(8, 6, generator=draw) for _ in range(3)]
    found = []
    for parts in (1, 2):
        parameters = [nn.Parameter(piece.clone()) for piece in torch.tensor_split(start, parts)]
        optimizer = factory([(f"weight{number}", parameter) for number, parameter in enumerate(parameters)])
        for step in grads:
            for parameter, grad in zip(parameters, torch.tensor_split(step, parts), strict=True):
                parameter.grad = grad.clone()
            optimizer.step()
        found.append(torch.cat([parameter.detach() for parameter in parameters]))
    whole, halves = found
    if not torch.allclose(whole, halves, rtol=1e-5, atol=1e-7):
        name = type(factory([("weight", nn.Parameter(start.clone()))])).__name__
        raise UserError(
            f"{name} needs whole matrices, but this plan shards them, so the result would depend on the layout. Use "
            f"an element-wise optimizer such as AdamW, or parallel.shard=1 and tensor=1."
        )


@dataclass(frozen=True, slots=True)
class ParamOwnership:
    """A parameter, and who else has it."""

    name: str  #: in the model
    parameter: nn.Parameter  #: whole or a part
    over_tensor: bool  #: its gradient is a part of a sum over the tensor ranks
    over_pipeline: bool  #: the same over the pipeline's
    over_data: bool  #: the same over the ranks that share other weights, which FSDP does not see to for one kept whole
    copies: int  #: ranks that hold the very same part


def owned_params(model: nn.Module, mesh: Mesh | None) -> list[ParamOwnership]:
    """What this rank holds, with who shares it; None where it is alone."""
    if mesh is None:
        return [ParamOwnership(name, parameter, False, False, False, 1) for name, parameter in model.named_parameters()]
    plan = mesh.plan
    how = model.plan() if isinstance(model, Divisible) else None
    modules = [name for name, _ in model.named_modules()]
    sums = summed_over_tensor(model, plan)
    repeated = set(match_modules(how.every if how else (), modules))
    found = []
    for name, parameter in model.named_parameters():
        axes = () if (parts := dtensor(parameter)) is None else parts.device_mesh.mesh_dim_names or ()
        split = parts is not None and "tensor" in axes and not parts.placements[axes.index("tensor")].is_replicate()
        # The bias of a row linear is not sharded, but it is a DTensor, which has summed its gradient already.
        partly = "tensor" not in axes and name in sums
        on_all = plan.pipeline > 1 and _below(name, repeated)
        whole = mesh.sharding is not None and "shard" not in axes
        copies = plan.replicate * (1 if split else plan.tensor) * (plan.pipeline if on_all else 1)
        copies *= plan.shard * plan.context if whole else 1
        found.append(ParamOwnership(name, parameter, partly, on_all, whole, copies))
    return found


def summed_over_tensor(model: nn.Module, plan: ParallelPlan) -> set[str]:
    """Names of parameters whose gradient is a part of a sum over the tensor ranks, if these hold them whole.

    Each rank has seen only some tokens, or some heads.
    """
    if plan.tensor == 1:
        return set()
    how, modules = model.plan() if isinstance(model, Divisible) else None, dict(model.named_modules())
    of_heads = set(match_modules(how.per_head if how else (), modules))
    complete = set(match_modules(how.whole_gradient if how else (), modules))
    complete |= {name for name, module in modules.items() if getattr(module, "whole_gradient", False)}
    names = [name for name, _ in model.named_parameters() if not _below(name, complete)]
    return {name for name in names if plan.sequence or _below(name, of_heads)}


def _below(name: str, modules: set[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)


def sum_partial(holding: Sequence[ParamOwnership], mesh: Mesh) -> None:
    """Add up what FSDP does not: over tensor ranks, then over stages; and what it does not know of, as it would."""
    if mesh.tensor is not None:
        all_reduce(_gradients(one for one in holding if one.over_tensor), mesh.tensor)
    if mesh.pipeline is not None:
        all_reduce(_gradients(one for one in holding if one.over_pipeline), mesh.pipeline)
    if mesh.sharding is not None and (apart := _gradients(one for one in holding if one.over_data)):
        for group in mesh.sharding.get_all_groups():
            all_reduce(apart, group)
        torch._foreach_div_(apart, mesh.sharding.size())  # FSDP's are means until the step's end


def _gradients(holding: Iterable[ParamOwnership]) -> list[Tensor]:
    """Their gradients; zeros where this rank's samples did not touch a parameter, since the others will wait for it."""
    found = []
    for one in holding:
        if one.parameter.requires_grad:
            if one.parameter.grad is None:
                one.parameter.grad = torch.zeros_like(one.parameter)
            found.append(local(one.parameter.grad))
    return found


def all_reduce(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Sum plain tensors over a group, in place, in a few large calls."""
    buckets: list[list[Tensor]] = []
    for tensor in tensors:
        full = not buckets or sum(one.nbytes for one in buckets[-1]) > _BUCKET_BYTES
        if full or buckets[-1][0].dtype != tensor.dtype:
            buckets.append([])
        buckets[-1].append(tensor)
    for bucket in buckets:
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        dist.all_reduce(flat, group=group)
        borders = list(itertools.accumulate(tensor.numel() for tensor in bucket))[:-1]
        parts = torch.tensor_split(flat, borders)
        torch._foreach_copy_(bucket, [part.view_as(tensor) for tensor, part in zip(bucket, parts, strict=True)])
