"""Builds a model for inference on the ranks of a sampling plan, each with its shard of the weights."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from nemo_vfm.core.device import device
from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.parallel.apply import apply_parallelism
from nemo_vfm.parallel.apply.build_model import build_model, build_unfilled
from nemo_vfm.parallel.engine.model_layout import call_under, call_within, layout_of
from nemo_vfm.parallel.engine.sampling_ranks import SamplingRanks
from nemo_vfm.parallel.fp8.fp8_attention import attention_in_fp8
from nemo_vfm.parallel.fp8.use_fp8 import require_hardware, use_fp8
from nemo_vfm.parallel.plan.adapter_split import set_apart
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import networks_of

Attach = Callable[[nn.Module], None]


def build_for_inference(
    factory: Factory[[], nn.Module], seed: int, ranks: SamplingRanks, attach: Attach, *, init_weights: bool,
    fp8: Fp8 | None = None,
) -> nn.Module:  # fmt: skip
    """Build a model on this rank, in evaluation mode without gradients; every rank must call it.

    Args:
        factory: builds the model.
        seed: determines the initial weights.
        ranks: the ranks that share it. A single process gets the model on the CPU.
        attach: called before the split to add modules that are split with the model, such as adapters.
        init_weights: whether to initialise the weights; if not, a model on several ranks has uninitialised memory.
        fp8: how the large linears and attention compute in FP8; None is not.

    Raises:
        UserError: the plan does not fit the model.
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
        call_under(network, layout, nullcontext)
    if meta:
        apply_parallelism.allocate(model, device())
    if meta and init_weights:
        with set_apart(model):
            apply_parallelism.draw(model, derive(seed, "initial weights"))
    return model


def _into_fp8(model: nn.Module, fp8: Fp8 | None, plan: ParallelPlan = ParallelPlan()) -> None:
    if fp8 is None:
        return
    require_hardware(fp8)
    for network in networks_of(model):
        use_fp8(network, fp8, plan.tensor)
        if fp8.attention:
            call_within(network, partial(attention_in_fp8, on=True))


def require_divisible(model: nn.Module, plan: ParallelPlan) -> None:
    """Raise UserError if a plan does not fit a model or one of its networks."""
    for network in networks_of(model):
        apply_parallelism.require_divisible(network, plan)
