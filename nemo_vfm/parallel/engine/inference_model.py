"""Builds a model for inference on the ranks of a sampling plan, and connects the ranks that sample videos together.

A rank knows which estimate it computes, what it exchanges and agrees on. In a single process the collectives return
their argument.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.parallel.apply import apply_parallelism
from nemo_vfm.parallel.apply.build_model import build_model, build_unfilled
from nemo_vfm.parallel.layers.parallel_attention import attention_by
from nemo_vfm.parallel.layers.token_layout import all_parts, call_within, under
from nemo_vfm.parallel.plan.adapter_split import set_apart
from nemo_vfm.parallel.plan.mesh import Mesh, group_among, join, layout_of
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sampling_plan import SamplingPlan
from nemo_vfm.parallel.plan.sharding_spec import networks_of


@dataclass(frozen=True, slots=True)
class SamplingRanks:
    """This process's place among the ranks that sample."""

    plan: SamplingPlan = field(default_factory=SamplingPlan)  #: the parallel degrees
    mesh: Mesh | None = None  #: device mesh of the weights; None for a single process
    #: group of the two ranks that compute the estimates of one video; None if this rank computes both
    pair: dist.ProcessGroup | None = None
    #: group of the ranks that run the same blocks together; None if this rank runs them alone
    lockstep: dist.ProcessGroup | None = None

    @property
    def rank(self) -> int:
        """Global rank of this process."""
        return 0 if self.mesh is None else self.mesh.rank

    @property
    def data_rank(self) -> int:
        """Index of the data-parallel group, which has its own prompts."""
        return self.plan.data_rank(self.rank)

    @property
    def branch(self) -> int | None:
        """The estimate that this rank computes: 0 conditional, 1 unconditional; None if it computes both."""
        return None if self.pair is None else self.plan.branch(self.rank)

    @property
    def writes(self) -> bool:
        """Whether this rank decodes the videos of its group."""
        return self.plan.writes(self.rank)

    @property
    def has_plain_weights(self) -> bool:
        """Whether this rank has all weights unsharded, so that they can be offloaded."""
        return not self.plan.is_sharded and self.plan.tensor == 1

    def estimates(self, estimate: Tensor) -> list[Tensor]:
        """Exchange the estimates of a pair; return the conditional one first."""
        assert self.pair is not None
        return all_parts(estimate, self.pair)


def join_sampling(plan: SamplingPlan) -> SamplingRanks:
    """Join the process groups of a plan. UserError if it is for another number of ranks than were started."""
    if plan.world == 1:
        return SamplingRanks(plan)
    mesh = join(plan.layout(), device())
    distance = plan.context * plan.tensor  # between ranks that differ only in their estimate
    pairs = [(first, first + distance) for first in range(plan.world) if plan.branch(first) == 0]
    pair = None if plan.guidance == 1 else group_among(pairs)
    runs = [range(first, first + plan.replica) for first in range(0, plan.world, plan.replica)]
    return SamplingRanks(plan, mesh, pair, None if plan.replica == 1 else group_among(runs))


Attach = Callable[[nn.Module], None]


def build_for_inference(
    factory: Factory[[], nn.Module], seed: int, ranks: SamplingRanks, attach: Attach, *, init_weights: bool,
    fp8: Fp8 | None = None,
) -> nn.Module:  # fmt: skip
    """Build a model on this rank, in evaluation mode without gradients; every rank must call it.

    A single process gets the model on the CPU. `attach` adds modules that are split with the model, such as adapters.
    Without `init_weights` a model on several ranks has uninitialised memory. With `fp8` its large linears and attention
    compute so. UserError if the plan does not fit the model.
    """
    if ranks.mesh is None:
        model = build_model(factory, seed)
        attach(model)
        _into_fp8(model, fp8)
        return model.eval().requires_grad_(False)
    model, meta = build_unfilled(factory, seed)
    attach(model)
    model.eval().requires_grad_(False)
    for network in networks_of(model):
        apply_parallelism.require_divisible(network, ranks.mesh.plan)
    _into_fp8(model, fp8, ranks.mesh.plan)
    for network in networks_of(model):
        apply_parallelism.split_linears(network, ranks.mesh)
    if not meta:
        model.to(device())
    for network in networks_of(model):
        if ranks.plan.is_sharded:
            apply_parallelism.shard(network, ranks.mesh, torch.float32)
        layout = replace(layout_of(ranks.mesh, network), lockstep=ranks.lockstep)
        call_within(network, partial(under, layout))
    if meta:
        apply_parallelism.allocate(model, device())
    if meta and init_weights:
        with set_apart(model):
            apply_parallelism.draw(model, derive(seed, "initial weights"))
    return model


def _into_fp8(model: nn.Module, fp8: Fp8 | None, plan: ParallelPlan = ParallelPlan()) -> None:
    if fp8 is None:
        return
    from nemo_vfm.parallel.fp8.fp8_attention import fp8_attention
    from nemo_vfm.parallel.fp8.use_fp8 import require_hardware, use_fp8

    require_hardware(fp8)
    for network in networks_of(model):
        use_fp8(network, fp8, plan.tensor)
        if fp8.attention:
            call_within(network, partial(attention_by, fp8_attention))


def require_divisible(model: nn.Module, plan: ParallelPlan) -> None:
    """Raise UserError if a plan does not fit a model or one of its networks."""
    for network in networks_of(model):
        apply_parallelism.require_divisible(network, plan)
