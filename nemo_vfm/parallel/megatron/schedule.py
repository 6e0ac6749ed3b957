# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs microbatches by Megatron-Core's schedule, and sums gradients inside its DDP to those of one device."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

from nemo_vfm.parallel.engine import gradients
from nemo_vfm.parallel.megatron.parallel_layers import split_parameters
from nemo_vfm.parallel.plan.mesh import Mesh
from nemo_vfm.parallel.plan.plan import ParallelPlan

Forwards = Iterator[tuple[Tensor, float]]


def config_of(plan: ParallelPlan) -> TransformerConfig:
    """Megatron-Core's settings; the layers' sizes are the model's own, so those here mean nothing."""
    return TransformerConfig(
        num_layers=1, hidden_size=plan.tensor, num_attention_heads=plan.tensor,
        tensor_model_parallel_size=plan.tensor, sequence_parallel=plan.sequence,
        context_parallel_size=plan.context, use_cpu_initialization=True, perform_initialization=False,
        params_dtype=torch.float32, gradient_accumulation_fusion=False,
        calculate_per_token_loss=True,  # gradients are sums, and losses are neither divided nor multiplied
    )  # fmt: skip


class _Part(nn.Module):
    """What the schedule calls a model: it holds the settings, and takes nothing from another stage."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config, self.model_type = config, ModelType.encoder_or_decoder

    def set_input_tensor(self, _: object) -> None:
        """Ignore what there is only in a pipeline."""


class Schedule:
    """Forward and backward of one rank.

    Args:
        model: split.
        config: see `config_of`.
        groups: of processes.
        mesh: this rank among the others.
    """

    def __init__(
        self, model: nn.Module, config: TransformerConfig, groups: ProcessGroupCollection, mesh: Mesh
    ) -> None:  # fmt: skip
        self._groups, self._config = groups, config
        self._partial = partial_over_tensor(model, mesh.plan)
        mark(model)
        self.wrapped = DistributedDataParallel(config, _ddp(mesh.plan), model, pg_collection=groups)
        config.finalize_model_grads_func = self._finalize

    def run(self, forwards: Forwards, count: int) -> tuple[float, float]:
        """(sum of losses by their weights, sum of the weights) of this rank's microbatches, gradients summed.

        Args:
            forwards: computes one microbatch each time it is asked.
            count: of microbatches.
        """
        self.wrapped.zero_grad_buffer()
        losses: list[Tensor] = []
        weights: list[float] = []

        def forward(found: Forwards, _: nn.Module) -> tuple[Tensor, Any]:
            loss, weight = next(found)
            losses.append(loss.detach().clone())  # the schedule may divide the other one in place
            weights.append(weight)
            return loss, _three

        get_forward_backward_func(pp_size=1, vp_size=None)(
            forward_step_func=forward, data_iterator=forwards, model=_Part(self._config), num_microbatches=count,
            seq_length=1, micro_batch_size=1, pg_collection=self._groups,
        )  # fmt: skip
        return sum(map(float, losses)), sum(weights)

    def _finalize(self, *_: object, **__: object) -> None:
        sum_over_tensor([_main_grad(one) for one in self._partial], self._groups.tp)
        self.wrapped.finish_grad_sync()


def _three(loss: Tensor) -> tuple[Tensor, Tensor, None]:
    """Loss, tokens and what is logged. A pair's loss the schedule would multiply by the context ranks."""
    return loss, torch.zeros((), dtype=torch.int, device=loss.device), None


def _ddp(plan: ParallelPlan) -> DistributedDataParallelConfig:
    shared = plan.shard * plan.context > 1
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=shared,
        num_distributed_optimizer_instances=plan.replicate if shared else 1,
    )  # fmt: skip


def mark(model: nn.Module) -> None:
    """Say of each parameter whether tensor ranks have parts of it, as Megatron-Core's norm of gradients asks."""
    dims = split_parameters(model)
    for name, parameter in model.named_parameters():
        marked: Any = parameter
        marked.tensor_model_parallel, marked.partition_dim = name in dims, dims.get(name, -1)
        marked.partition_stride = 1


def partial_over_tensor(model: nn.Module, plan: ParallelPlan) -> list[nn.Parameter]:
    """The whole parameters of which each tensor rank has a part of the gradient."""
    split, sums = split_parameters(model), gradients.TensorSums(model, plan)
    return [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in split and name in sums
    ]


def _main_grad(parameter: nn.Parameter) -> Tensor:
    found: Tensor = parameter.main_grad  # type: ignore[attr-defined]
    return found


def sum_over_tensor(parts: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Add up parts of gradients over the tensor ranks."""
    gradients.all_reduce(parts, group)
