"""Sums gradients in Megatron-Core's DDP, updates weights by its optimizer, and shows state as the other engine does.

Megatron-Core's distributed optimizer gives each data rank a run of numbers that may end anywhere in a parameter. A
checkpoint holds boxes, so each parameter's state is gathered over these ranks, one by one, and each keeps its rows.
"""

from nemo_vfm.core.optional import require

require("megatron.core", purpose="engine=megatron")

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, ParamKey, get_megatron_optimizer
from megatron.core.optimizer.optimizer_config import ParamPredicate
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.apply.pipeline_stage import params_of_every_stage
from nemo_vfm.parallel.checkpoint.checkpoint_reader import restore_state
from nemo_vfm.parallel.engine import weight_updater
from nemo_vfm.parallel.engine.step_runner import DenseUpdater
from nemo_vfm.parallel.megatron.adam_arguments import adam_arguments
from nemo_vfm.parallel.megatron.parallel_layers import split_parameters
from nemo_vfm.parallel.plan.mesh import Mesh
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import OptimizerFactory
from nemo_vfm.parallel.ranks.gather import Gather

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class _Shard:
    """A parameter, and the run of it that this rank updates; the run is None where it updates nothing of it."""

    name: str
    parameter: nn.Parameter
    main: Tensor | None
    start: int
    end: int

    @property
    def row_size(self) -> int:
        """Numbers of a row."""
        return math.prod(self.parameter.shape[1:])

    @property
    def rows(self) -> tuple[int, int]:
        """The first row that the run is part of, and the one after the last."""
        return self.start // self.row_size, -(-self.end // self.row_size)


class MegatronUpdater(DenseUpdater):
    """Updates the parameters of one rank by Megatron-Core's DDP and optimizer; a `DenseUpdater`."""

    group = "optimizer"

    def __init__(
        self, model: nn.Module, factory: OptimizerFactory, config: TransformerConfig, groups: ProcessGroupCollection,
        mesh: Mesh,
    ) -> None:  # fmt: skip
        wrapped, self._partial, self._repeated = data_parallel(model, config, groups, mesh)
        self._wrapped, self._groups = wrapped, groups
        self._mesh, self._dims, self._group = mesh, split_parameters(model), groups.intra_dp_cp
        self._is_shared = bool(wrapped.ddp_config.use_distributed_optimizer)
        arguments = adam_arguments(factory)
        first, second = arguments.betas
        adam = OptimizerConfig(
            optimizer="adam", lr=arguments.lr, weight_decay=arguments.weight_decay, adam_beta1=first,
            adam_beta2=second, adam_eps=arguments.eps, decoupled_weight_decay=True,
            use_distributed_optimizer=self._is_shared, clip_grad=0.0,
        )  # fmt: skip
        # The parameters, by their ids, that the recipe's optimizer would update by each learning rate and weight decay.
        learning = [(name, one) for name, one in wrapped.module.named_parameters() if one.requires_grad]
        numbers: dict[tuple[float, float], set[int]] = {}
        for group in factory(learning).param_groups:
            own = numbers.setdefault((float(group["lr"]), float(group["weight_decay"])), set())
            own.update(map(id, group["params"]))
        # The numbers of parameters that have others than the rest; empty, lest norms and biases lose their decay.
        others = {
            ParamKey(predicate=ParamPredicate(f"{lr} {decay}", lambda one, own=own: id(one) in own)): {
                "lr": lr, "weight_decay": decay,
            }
            for (lr, decay), own in numbers.items()
            if (lr, decay) != (arguments.lr, arguments.weight_decay)
        }  # fmt: skip
        self._chained = get_megatron_optimizer(
            adam, [wrapped], others, use_gloo_process_groups=False, pg_collection=groups
        )
        (self._own,) = self._chained.chained_optimizers
        if self._own.is_stub_optimizer:
            raise UserError("This rank has no trainable weights. Use engine=torch.")
        self.optimizer: torch.optim.Optimizer = self._own.optimizer
        self._shards = [self._shard(name, parameter) for name, parameter in learning]

    def begin(self) -> None:
        """See `Updater`. What is left in `grad` would be added to the buffer that it is a view of."""
        self._chained.zero_grad()
        self._wrapped.zero_grad_buffer()

    def reduce(self) -> None:
        """Sum what tensor ranks have parts of, then what each stage has a part of, then over data and context ranks."""
        weight_updater.all_reduce([_main_grad(one) for one in self._partial], self._groups.tp)
        # Before DDP's sum: after it each rank has its own run of numbers, which differs from stage to stage.
        weight_updater.all_reduce([_main_grad(one) for one in self._repeated], self._groups.pp)
        self._wrapped.finish_grad_sync()

    def squared_norm(self) -> float:
        """See `Updater`; Megatron-Core's norm is that of all ranks."""
        self._chained.prepare_grads()
        return float(self._chained.get_grad_norm()) ** 2 / self._mesh.plan.world

    def apply(self, divisor: float, clip_factor: float) -> None:
        """See `Updater`."""
        grads = [p.grad for g in self.optimizer.param_groups for p in g["params"] if p.grad is not None]
        torch._foreach_mul_(grads, clip_factor / divisor)
        self._chained.step_with_ready_grads()

    @torch.no_grad()
    def state(self) -> dict[str, Tensor]:
        """The optimizer's, as `parameter name/key`; every rank must call it."""
        # How often each parameter was updated. Fused optimizers keep the count in the group.
        counts, in_group = [], self.optimizer.param_groups[0].get("step", 0)
        for shard in self._shards:
            state = {} if shard.main is None else self.optimizer.state.get(shard.main, {})
            counts.append(float(state.get("step", in_group)) if state else 0.0)
        seen = torch.tensor(counts, dtype=torch.float32, device=self._shards[0].parameter.device)
        if self._is_shared:
            dist.all_reduce(seen, op=dist.ReduceOp.MAX, group=self._group)
        found: dict[str, Tensor] = {}
        for shard, step in zip(self._shards, seen.tolist(), strict=True):
            if step:  # none before the first step
                found[f"{shard.name}/step"] = torch.tensor(step, dtype=torch.float32)
                found |= {f"{shard.name}/{key}": self._rows(shard, key) for key in _MOMENTS}
        return found

    def _rows(self, shard: _Shard, key: str) -> Tensor:
        """What this rank saves of a moment: its rows of what its tensor rank holds."""
        from torch.distributed.tensor import DTensor, Replicate, Shard

        own = None if shard.main is None else self.optimizer.state[shard.main][key]
        if not self._is_shared:
            assert own is not None
            return self._laid_out(shard, own)
        whole = torch.zeros(shard.parameter.numel(), dtype=torch.float32, device=shard.parameter.device)
        if own is not None:
            whole[shard.start : shard.end] = own
        dist.all_reduce(whole, group=self._group)
        part = whole.view(shard.parameter.shape)
        # Of what it has gathered, this data rank's share, along a dimension that tensor ranks do not split.
        over = 0 if (dim := self._dims.get(shard.name)) != 0 else 1
        if over == part.dim():  # a bias that tensor ranks split
            return self._laid_out(shard, part)
        devices = self._mesh.devices["shard", "tensor"]
        shape = torch.Size(n * (self._mesh.plan.tensor if d == dim else 1) for d, n in enumerate(part.shape))
        # As torch.chunk cuts: the last ranks may have fewer rows, or none.
        rows = -(-part.shape[over] // devices.size(0))
        first = min(devices.get_local_rank(0) * rows, part.shape[over])
        own = part.narrow(over, first, min(rows, part.shape[over] - first)).clone()
        return DTensor.from_local(
            own, devices, [Shard(over), Replicate() if dim is None else Shard(dim)], run_check=False, shape=shape,
            stride=torch.empty(shape, device="meta").stride(),
        )  # fmt: skip

    def _laid_out(self, shard: _Shard, part: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, Shard

        if (dim := self._dims.get(shard.name)) is None:
            return part
        return DTensor.from_local(part, self._mesh.devices["tensor"], [Shard(dim)], run_check=False)

    def load(self, state: Mapping[str, Tensor], ranks: Gather) -> None:
        """The inverse of `state`; every rank must call it."""
        layout = {shard.name: self._laid_out(shard, shard.parameter.detach()) for shard in self._shards}
        found = restore_state(state, layout, ranks, {s.name: s.rows for s in self._shards if s.parameter.dim()})
        self.optimizer.state.clear()
        for shard in self._shards:
            if shard.main is None or shard.name not in found:
                continue
            # Its own run of the moments, and a step count of its own: a shared one would advance once per parameter.
            values, begin = found[shard.name], shard.start - shard.rows[0] * shard.row_size
            run = slice(begin, begin + shard.end - shard.start)
            moments = {key: values[key].flatten()[run].view(shard.main.shape) for key in _MOMENTS}
            state = {key: value.to(shard.main.device).clone() for key, value in moments.items()}
            if any("step" in group for group in self.optimizer.param_groups):
                for group in self.optimizer.param_groups:
                    group["step"] = int(float(values["step"]))
            else:
                state = {"step": torch.tensor(float(values["step"]), dtype=torch.float32), **state}
            self.optimizer.state[shard.main] = state
        self._chained.reload_model_params()

    def _shard(self, name: str, parameter: nn.Parameter) -> _Shard:
        if not self._is_shared:
            return _Shard(name, parameter, parameter, 0, parameter.numel())
        if parameter not in self._own.model_param_group_index_map:
            return _Shard(name, parameter, None, 0, 0)
        group, order = self._own.model_param_group_index_map[parameter]
        main = self.optimizer.param_groups[group]["params"][order]
        run = self._own._get_model_param_range_map(parameter)["param"]
        return _Shard(name, parameter, main, run.start, run.end)

    def gradients(self) -> dict[str, Tensor]:
        """See `DenseUpdater`; as far as tensor ranks split them, as the update used them."""
        found = {}
        for shard in self._shards:
            own = _main_grad(shard.parameter)
            whole = own.clone()
            if self._is_shared:
                whole = torch.zeros_like(own).flatten()
                whole[shard.start : shard.end] = own.flatten()[shard.start : shard.end]
                dist.all_reduce(whole, group=self._group)
            found[shard.name] = self._laid_out(shard, whole.view_as(own))
        return found


def data_parallel(
    model: nn.Module, config: TransformerConfig, groups: ProcessGroupCollection, mesh: Mesh
) -> tuple[DistributedDataParallel, list[nn.Parameter], list[nn.Parameter]]:
    """A rank's part of a model inside Megatron-Core's DDP, which holds the gradients, and what DDP alone does not sum.

    That is the whole parameters of which each tensor rank has a part of the gradient, and those of every stage.
    """
    everywhere = params_of_every_stage(model) if mesh.plan.pipeline > 1 else set()
    named, dims = dict(model.named_parameters()), split_parameters(model)
    sums = weight_updater.summed_over_tensor(model, mesh.plan) - dims.keys()
    partial_ones = [one for name, one in named.items() if name in sums and one.requires_grad]
    repeated_ones = [one for one in named.values() if one in everywhere and one.requires_grad]
    # Tell Megatron-Core's norm of gradients which parameters are parts, and which another stage counts.
    counted_elsewhere = everywhere if mesh.at.pipeline else set()
    for name, parameter in named.items():
        marked: Any = parameter
        marked.tensor_model_parallel, marked.partition_dim = name in dims, dims.get(name, -1)
        marked.partition_stride, marked.shared = 1, parameter in counted_elsewhere
    wrapped = DistributedDataParallel(config, _ddp(mesh.plan), model, pg_collection=groups)
    return wrapped, partial_ones, repeated_ones


def _ddp(plan: ParallelPlan) -> DistributedDataParallelConfig:
    shared = plan.shard * plan.context > 1
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=shared,
        num_distributed_optimizer_instances=plan.replicate if shared else 1,
    )  # fmt: skip


def _main_grad(parameter: nn.Parameter) -> Tensor:
    found: Tensor = parameter.main_grad  # type: ignore[attr-defined]
    return found
