"""Sums gradients inside Megatron-Core's DDP to those of one device."""

from nemo_vfm.core.optional import require

require("megatron.core", purpose="engine=megatron")

from typing import Any

from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

from nemo_vfm.parallel.apply.pipeline_stage import repeated
from nemo_vfm.parallel.engine import weight_updater
from nemo_vfm.parallel.megatron.parallel_layers import split_parameters
from nemo_vfm.parallel.plan.mesh import Mesh
from nemo_vfm.parallel.plan.plan import ParallelPlan


class DataParallel:
    """A rank's part of a model inside Megatron-Core's DDP, which holds the gradients.

    Args:
        model: split, and cut where there is a pipeline.
        config: Megatron-Core's.
        groups: of processes.
        mesh: this rank among the others.
    """

    def __init__(
        self, model: nn.Module, config: TransformerConfig, groups: ProcessGroupCollection, mesh: Mesh
    ) -> None:  # fmt: skip
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        everywhere = repeated(model) if mesh.plan.pipeline > 1 else set()
        self._groups = groups
        self._partial = partial_over_tensor(model, mesh.plan)
        self._repeated = [parameter for parameter in learning if parameter in everywhere]
        mark(model, counted_elsewhere=everywhere if mesh.at.pipeline else set())
        self.wrapped = DistributedDataParallel(config, _ddp(mesh.plan), model, pg_collection=groups)

    def forget(self) -> None:
        """Set the gradients to zero."""
        self.wrapped.zero_grad_buffer()

    def finish(self) -> None:
        """Sum what tensor ranks have parts of, then what each stage has a part of, then over data and context ranks."""
        weight_updater.all_reduce([_main_grad(one) for one in self._partial], self._groups.tp)
        # Before DDP's sum: after it each rank has its own run of numbers, which differs from stage to stage.
        weight_updater.all_reduce([_main_grad(one) for one in self._repeated], self._groups.pp)
        self.wrapped.finish_grad_sync()


def _ddp(plan: ParallelPlan) -> DistributedDataParallelConfig:
    shared = plan.shard * plan.context > 1
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=shared,
        num_distributed_optimizer_instances=plan.replicate if shared else 1,
    )  # fmt: skip


def mark(model: nn.Module, counted_elsewhere: set[nn.Parameter]) -> None:
    """Tell Megatron-Core's norm of gradients which parameters are parts, and which another stage counts."""
    dims = split_parameters(model)
    for name, parameter in model.named_parameters():
        marked: Any = parameter
        marked.tensor_model_parallel, marked.partition_dim = name in dims, dims.get(name, -1)
        marked.partition_stride, marked.shared = 1, parameter in counted_elsewhere


def partial_over_tensor(model: nn.Module, plan: ParallelPlan) -> list[nn.Parameter]:
    """The whole parameters of which each tensor rank has a part of the gradient."""
    split, sums = split_parameters(model), weight_updater.TensorSums(model, plan)
    return [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in split and name in sums
    ]


def _main_grad(parameter: nn.Parameter) -> Tensor:
    found: Tensor = parameter.main_grad  # type: ignore[attr-defined]
    return found
