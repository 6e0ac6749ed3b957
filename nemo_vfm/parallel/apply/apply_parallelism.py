"""Applies a parallelism plan to a model on a mesh, so that this rank holds its part.

The order matters. The large linears are split first, then activations are marked for recomputation, then blocks are
compiled. The weights are sharded last, so that FSDP gathers only what is left of each block.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nemo_vfm.core.counter_random import counter_based
from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.apply.local_shard import copy_own
from nemo_vfm.parallel.layers.linear import mark_constants
from nemo_vfm.parallel.plan.adapter_split import ADAPTERS, ShardableAdapter, TensorSplit, set_apart
from nemo_vfm.parallel.plan.mesh import Mesh
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import Divisible, ShardingSpec, match_modules

if TYPE_CHECKING:  # they take a second to import, and what only asks whether a plan will do needs none of them
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement
    from torch.distributed.tensor.parallel import ParallelStyle

#: Without this, torch 2.10 to 2.13 compute wrong gradients on a GPU, and say nothing, where a batch has one sample, and
#: shifts and scales of norms are parts of one tensor, as in a DiT (pytorch #193061). Others are of a wrong shape, which
#: stops the step (#178080; seen with FP8, torch 2.11, H200).
_INDUCTOR = {"triton.mix_order_reduction": False}


@runtime_checkable
class SeededWeights(Protocol):
    """A model whose first weights are a function of (seed, name): it can be born without memory, on any layout."""

    def initial_weight(self, name: str, shape: torch.Size, seed: int) -> Tensor:
        """The first value of one parameter, whole, on the CPU."""
        ...


def read_sharding_spec(model: nn.Module) -> ShardingSpec:
    """What the model says of itself. UserError if it says nothing."""
    if isinstance(model, Divisible):
        return model.plan()
    raise UserError(
        f"{type(model).__name__} has no plan(), so it can be sharded and replicated but not "
        f"split; remove parallel.tensor, context and pipeline from the recipe."
    )


def require_divisible(model: nn.Module, plan: ParallelPlan) -> None:
    """Refuse a plan that the model's sizes do not allow."""
    if plan.world > 1 and isinstance(model, Divisible) and model.plan().one_device:
        raise UserError(f"a mixture of experts (model.experts) runs on one device, but this plan is for {plan.world} "
                        f"({plan}); leave every degree of parallel at 1.")  # fmt: skip
    if plan.tensor == plan.context == plan.pipeline == 1:
        return
    how = read_sharding_spec(model)
    names = dict(model.named_modules())
    if plan.context > 1 and how.window is not None:
        raise UserError(f"context parallelism does not split windowed attention, and some blocks see {how.window} "
                        f"tokens (model.window); leave parallel.context at 1. If no text is longer than that "
                        f"and window.rope is null, model.window=null is the same model.")  # fmt: skip
    exchanged = {"ring_ulysses": plan.ulysses, "ulysses": plan.context}.get(plan.attention, 1)
    fit = how.tensor_degrees()
    if exchanged > 1:  # each context rank takes whole heads of what a tensor rank has
        fit = [n for n in fit if max(1, how.heads // n) % exchanged == 0]
    if plan.tensor not in fit:
        fits = f"the degrees that fit are {', '.join(map(str, fit))}" if fit else "no tensor degree fits"
        of = f" ({how.query_heads} of queries)" if how.query_heads not in (None, how.heads) else ""
        raise UserError(f"{how.heads} attention heads{of} cannot be divided by {plan.tensor * exchanged} "
                        f"(parallel.tensor = {plan.tensor}, attention = {plan.attention}); {fits}.")  # fmt: skip
    sides = ((how.column, "out_features"), (how.row, "in_features"), (how.vocabulary, "num_embeddings"))
    for patterns, side in sides if plan.tensor > 1 else ():
        for name in match_modules(patterns, names):
            if getattr(names[name], side) % plan.tensor:
                size = getattr(names[name], side)
                raise UserError(f"{name} has {size} {side}, which parallel.tensor = {plan.tensor} does not divide.")
    for name in match_modules(how.column, names) if plan.tensor > 1 else ():
        if isinstance(adapters := getattr(names[name], ADAPTERS, None), ShardableAdapter):
            adapters.require_divisible(plan.tensor)
    if plan.pipeline > 1:
        blocks = names[how.blocks]
        assert isinstance(blocks, nn.ModuleList)
        if len(blocks) < plan.stages:
            raise UserError(f"{len(blocks)} blocks cannot be cut into {plan.stages} stages (parallel.pipeline = "
                            f"{plan.pipeline} x virtual = {plan.virtual}).")  # fmt: skip


def split_linears(model: nn.Module, mesh: Mesh) -> None:
    """Give this rank its columns and rows of the linears that the model names."""
    if mesh.plan.tensor == 1:
        return
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    how, names, sequence = read_sharding_spec(model), dict(model.named_modules()), mesh.plan.sequence
    whole = set(match_modules(how.whole_input, names))
    between = Shard(1) if sequence else Replicate()
    styles: dict[str, ParallelStyle] = {
        name: ColwiseParallel(input_layouts=Replicate() if name in whole else between)
        for name in match_modules(how.column, names)
    }
    styles |= {name: RowwiseParallel(output_layouts=between) for name in match_modules(how.row, names)}
    with _shared_kept(model), set_apart(model) as beside:
        parallelize_module(model, mesh.devices["tensor"], styles)
        for name, one in beside.items():
            _split_beside(name, one, how, names, mesh)
        devices = mesh.devices["tensor"]
        for name in match_modules(
            how.across_heads, names
        ):  # keep the weights of this rank's heads, and sum over the ranks
            norm: Any = names[name]
            weight = distribute_tensor(norm.weight, devices, [Shard(0)], src_data_rank=None)
            norm.weight = nn.Parameter(weight, requires_grad=norm.weight.requires_grad)
            norm.total = partial(_sum_over_ranks, devices)
        for name in match_modules(how.vocabulary, names):
            embedding: Any = names[name]
            if embedding.weight is not None:  # that of another pipeline stage is hollow
                # DTensor's own lookup gives a whole gradient for a split weight (torch 2.13).
                weight = distribute_tensor(embedding.weight, devices, [Shard(0)], src_data_rank=None)
                embedding.weight = nn.Parameter(weight, requires_grad=embedding.weight.requires_grad)
                embedding.forward = partial(_looked_up, embedding, devices, between)


def _split_beside(name: str, beside: nn.Module, how: ShardingSpec, names: dict[str, nn.Module], mesh: Mesh) -> None:
    """Split the module beside a linear, such as an adapter, as the linear is split."""
    column, row = (name in match_modules(patterns, names) for patterns in (how.column, how.row))
    if not (column or row):
        return
    if not isinstance(beside, ShardableAdapter):
        raise UserError(f"{name} is split over tensor ranks, but its {type(beside).__name__} cannot be; set "
                        f"parallel.tensor to 1")  # fmt: skip
    whole_input = name in match_modules(how.whole_input, names)
    beside.split(
        TensorSplit("column" if column else "row", mesh.devices["tensor"], mesh.plan.sequence and not whole_input)
    )
    module: Any = beside
    module.whole_gradient = whole_input


def _sum_over_ranks(mesh: "DeviceMesh", part: Tensor) -> Tensor:
    """Sums over ranks; its gradient is summed too, because each rank's heads use the result."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    whole = DTensor.from_local(part, mesh, [Partial()], run_check=False).redistribute(placements=[Replicate()])
    return whole.to_local(grad_placements=[Partial()])


def _looked_up(embedding: nn.Embedding, mesh: "DeviceMesh", between: "Placement", words: Tensor) -> Tensor:
    """Vectors of words: zeros for those of other ranks, then the sum."""
    from torch.distributed.tensor import DTensor, Partial

    weight = embedding.weight
    rows = weight.to_local() if isinstance(weight, DTensor) else weight
    own = words - mesh.get_local_rank() * rows.shape[0]
    here = (own >= 0) & (own < rows.shape[0])
    found = F.embedding(own.where(here, 0), rows) * here[..., None]
    whole: Tensor = DTensor.from_local(found, mesh, [Partial()], run_check=False).redistribute(placements=[between])
    return whole.to_local()  # type: ignore[attr-defined, no-any-return]


@contextmanager
def _shared_kept(model: nn.Module) -> Iterator[None]:
    """What several modules share they share afterwards: splitting and filling give each module one of its own."""
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            places.setdefault(parameter, []).append((module, name))
    yield
    for (first, name), *others in places.values():
        for module, other in others:
            setattr(module, other, getattr(first, name))


def recompute(model: nn.Module) -> None:
    """Run the modules that the model names again in backward, instead of keeping what they computed.

    Their forward is wrapped, not the module: a wrapper would change the names of the parameters.
    """
    if not isinstance(model, Divisible):
        raise UserError(no_blocks(model))
    names = dict(model.named_modules())
    for name in match_modules(model.plan().recompute, names):
        module: Any = names[name]
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)


def no_blocks(model: nn.Module) -> str:
    """Why the blocks of a model without `plan()` cannot be computed again."""
    return (f"{type(model).__name__} has no plan() that names its blocks, so they cannot be recomputed in the "
            f"backward pass; set engine.recompute to none")  # fmt: skip


def shard(
    model: nn.Module, mesh: Mesh, dtype: torch.dtype, blocks: Iterable[nn.Module] | None = None, *,
    apart: Collection[nn.Parameter] = (), gather_once: bool = False,
) -> None:  # fmt: skip
    """Share weights, gradients and optimizer state of a model or a stage; each block is gathered when its turn comes.

    Weights travel in the dtype of the arithmetic; gradients are summed in fp32. Each of `blocks` is gathered by itself,
    None being the model's; each rank keeps the parameters `apart` whole. With `gather_once` what is gathered stays for
    the rest of the step, as in a pipeline, which comes back to each block with every microbatch.
    """
    if mesh.sharding is None:
        return
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    narrow = None if dtype == torch.float32 else dtype
    policy = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in _blocks(model) if blocks is None else blocks:
        fully_shard(block, mesh=mesh.sharding, mp_policy=policy, reshard_after_forward=not gather_once)
    # The root, too, gives its weights back after forward: after one without backward nobody else would do it, and the
    # model would show gathered weights, with gradients of their own, to whoever asks.
    fully_shard(
        model, mesh=mesh.sharding, mp_policy=policy, reshard_after_forward=not gather_once, ignored_params=set(apart)
    )


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    if isinstance(model, Divisible):
        yield from model.get_submodule(model.plan().blocks).children()


def compile_blocks(model: nn.Module) -> None:
    """Compile each block by itself: they are alike, so the first one's work serves all."""
    backend = getattr(torch.compiler, "get_default_backend", lambda: "inductor")()  # torch 2.11 has no other
    options = _INDUCTOR if backend == "inductor" else None
    mark_constants()
    for block in _blocks(model):
        block.compile(options=options)


def fill(model: nn.Module, seed: int, device: torch.device, *, counter: bool) -> None:
    """Give every parameter of a model born on the meta device this rank's part of its first value.

    With `counter` the numbers are drawn on the device, counter-based.
    """
    allocate(model, device)
    with counter_based(device if counter else None):
        draw(model, seed)


def draw(model: nn.Module, seed: int) -> None:
    """Give every parameter this rank's part of its first value."""
    assert isinstance(model, SeededWeights)
    parts = model.state_dict()  # Megatron-Core's layers show their parts as such only there
    for name, _ in model.named_parameters():
        copy_own(parts[name], model.initial_weight(name, parts[name].shape, seed))


def allocate(model: nn.Module, device: torch.device) -> None:
    """Give every parameter of a model born on the meta device memory for this rank's part, and no numbers yet."""
    with _shared_kept(model):
        model.to_empty(device=device)
