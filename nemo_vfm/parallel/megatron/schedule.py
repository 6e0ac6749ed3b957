"""Runs microbatches by Megatron-Core's schedules, with its settings, over the process groups of our mesh.

Microbatches run one after another, or through a pipeline by 1F1B or interleaved. With our groups both engines place
ranks alike.
"""

from nemo_vfm.core.optional import require

require("megatron.core", purpose="engine=megatron")

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

from nemo_vfm.parallel.apply.pipeline_schedule import RankPipeline, require_same
from nemo_vfm.parallel.apply.pipeline_stage import PipelineStage
from nemo_vfm.parallel.plan.mesh import Mesh, group_along
from nemo_vfm.parallel.plan.plan import AXES, ParallelPlan

Forwards = Iterator[tuple[Tensor, float]]


def config_of(plan: ParallelPlan) -> TransformerConfig:
    """Megatron-Core's settings; the layers' sizes are the model's own, so those here mean nothing."""
    pipelined: dict[str, Any] = {}
    if plan.pipeline > 1:
        pipelined = {"pipeline_model_parallel_size": plan.pipeline, "pipeline_dtype": torch.float32,
                     "batch_p2p_comm": False}  # fmt: skip
    if plan.virtual > 1:
        # With its defaults both neighbours of two stages are one rank in one group, and what was meant for one receive
        # arrives in the other, in silence.
        each = plan.microbatches // (plan.microbatches // plan.pipeline)
        pipelined |= {"virtual_pipeline_model_parallel_size": plan.virtual, "overlap_p2p_comm": True,
                      "microbatch_group_size_per_vp_stage": each}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of a default of its own
        return TransformerConfig(
            num_layers=plan.stages, hidden_size=1, num_attention_heads=plan.tensor, kv_channels=1,
            tensor_model_parallel_size=plan.tensor, sequence_parallel=plan.sequence,
            context_parallel_size=plan.context, use_cpu_initialization=True, perform_initialization=False,
            params_dtype=torch.float32, gradient_accumulation_fusion=False,
            calculate_per_token_loss=True,  # gradients are sums, and losses are neither divided nor multiplied
            **pipelined,
        )  # fmt: skip


class _Settings(nn.Module):
    """What the schedules call a model: it holds the settings."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config, self.model_type = config, ModelType.encoder_or_decoder

    def set_input_tensor(self, _: Any) -> None:
        """Ignore what there is only in a pipeline."""


def run_alone(
    forwards: Forwards, count: int, config: TransformerConfig, groups: ProcessGroupCollection
) -> tuple[float, float]:  # fmt: skip
    """(sum of losses by their weights, sum of the weights), after forward and backward of `count` microbatches."""
    losses: list[Tensor] = []
    weights: list[float] = []

    def forward(found: Forwards, _: nn.Module) -> tuple[Tensor, Any]:
        loss, weight = next(found)
        losses.append(loss.detach().clone())  # the schedule may divide the other one in place
        weights.append(weight)
        return loss, _three

    _run_schedule(1, None, forward, forwards, _Settings(config), count, groups)
    return sum(map(float, losses)), sum(weights)


def _run_schedule(
    pipeline: int, virtual: int | None, forward: Callable[..., Any], iterators: Any, models: Any, count: int,
    groups: ProcessGroupCollection, **more: Any,
) -> None:  # fmt: skip
    run = get_forward_backward_func(pp_size=pipeline, vp_size=virtual)
    run(forward_step_func=forward, data_iterator=iterators, model=models, num_microbatches=count,
        pg_collection=groups, micro_batch_size=1, **{"seq_length": 1, **more})  # fmt: skip


def _three(loss: Tensor) -> tuple[Tensor, Tensor, None]:
    """Loss, tokens and what is logged. A pair's loss the schedule would multiply by the context ranks."""
    return loss, torch.zeros((), dtype=torch.int, device=loss.device), None


class _Chunk(_Settings):
    """A stage as the schedules see it: between stages go vectors (N, 1, 1), whatever shape the model has there."""

    def __init__(self, config: TransformerConfig, stage: PipelineStage, between: Tensor, vp_stage: int) -> None:
        super().__init__(config)
        self.stage, self.between, self.vp_stage = stage, between, vp_stage
        self._received: Tensor | None = None

    def set_input_tensor(self, tensors: Sequence[Tensor | None]) -> None:
        """Keep what the stage before sent; None in the first."""
        self._received = tensors[0]

    def forward(self, number: int) -> Tensor:
        """What goes to the next stage, or comes out of the last."""
        self.stage.microbatch = number
        x, self._received = self._received, None
        y: Tensor = self.stage(None if x is None else x.view(self.between.shape))
        if self.stage.is_last:
            return y
        require_same(self.stage.index, y, self.between)
        return y.reshape(-1, 1, 1)


class MegatronPipeline(RankPipeline):
    """The stages of one rank under 1F1B, or interleaved where a rank has several."""

    def __init__(
        self, model: nn.Module, stages: Sequence[PipelineStage], mesh: Mesh, config: TransformerConfig,
        groups: ProcessGroupCollection,
    ) -> None:  # fmt: skip
        super().__init__(model, stages, mesh)
        self._config, self._groups = config, groups

    def _run(self, count: int, shape: torch.Size) -> list[Tensor]:
        plan, losses = self.mesh.plan, list[Tensor]()
        self._config.pipeline_dtype = self._dtype
        between = torch.empty(shape, dtype=self._dtype, device="meta")
        chunks = [_Chunk(self._config, stage, between, n) for n, stage in enumerate(self.stages.values())]

        def forward(numbers: Iterator[int], chunk: _Chunk) -> tuple[Tensor, Any]:
            number = next(numbers)
            return chunk(number), partial(self._record_loss, losses, number)

        whole = between.numel() * plan.tokens  # the schedules divide by the ranks that split tokens
        _run_schedule(
            plan.pipeline, plan.virtual if plan.virtual > 1 else None, forward, [iter(range(count)) for _ in chunks],
            list(chunks), count, self._groups, seq_length=whole,
            p2p_communicator=P2PCommunicator(self._groups.pp, self._config),
        )  # fmt: skip
        return losses

    def _record_loss(self, losses: list[Tensor], number: int, output: Tensor) -> tuple[Tensor, Tensor, None]:
        loss = self.loss(output, torch.tensor(number))
        losses.append(loss.detach().clone())
        return _three(loss)


#: Megatron-Core's name of a group -> the axes that it runs along.
ALONG: dict[str, tuple[str, ...]] = {
    "tp": ("tensor",),
    "cp": ("context",),
    "pp": ("pipeline",),
    "mp": ("pipeline", "tensor"),
    "dp": ("replicate", "shard"),
    "dp_cp": ("replicate", "shard", "context"),
    "intra_dp_cp": ("shard", "context"),
    "inter_dist_opt": ("replicate",),
    "intra_dist_opt": ("pipeline", "shard", "context", "tensor"),
    # There are no experts, so these are of this rank alone.
    "ep": (),
    "expt_dp": (),
    "intra_expt_dp": (),
    "tp_ep_pp": (),
}


def groups_of(plan: ParallelPlan) -> ProcessGroupCollection:
    """Make this rank's groups; every rank must call it."""
    made: dict[tuple[str, ...], dist.ProcessGroup] = {}
    found = {}
    for name, axes in ALONG.items():  # one group for all names that mean the same ranks
        key = tuple(axis for axis in AXES if axis in axes and plan.sizes[AXES.index(axis)] > 1)
        if key not in made:
            made[key] = group_along(plan, key)
        found[name] = made[key]
    if parallel_state._GLOBAL_MEMORY_BUFFER is None:  # sequence parallelism gathers into it
        make: Callable[[], None] = parallel_state._set_global_memory_buffer
        make()
    return ProcessGroupCollection(**found, embd=None, pos_embd=None)
