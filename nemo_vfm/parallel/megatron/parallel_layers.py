"""Replaces a model's large linears by Megatron-Core's column, row and vocabulary-parallel layers.

Names and whole shapes of parameters stay. A state dict shows each part as a DTensor, as the other engine's does, so
checkpoints, averages and warm starts need no second path.
Shape letters: B batch, S tokens, F features.
"""

from nemo_vfm.core.optional import require

require("megatron.core", purpose="engine=megatron")

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.apply.apply_parallelism import read_sharding_spec
from nemo_vfm.parallel.fp8.fp8_linear import Fp8Linear, Fp8Products
from nemo_vfm.parallel.plan.adapter_split import ADAPTERS
from nemo_vfm.parallel.plan.mesh import Mesh
from nemo_vfm.parallel.plan.sharding_spec import match_modules

#: Name of the attribute that says along which dimension each of a module's parameters is split.
SPLIT_DIMS = "split_dims"


class _AutocastForward:
    """Computes in the dtype that autocast asks for; inside Megatron-Core's own function autocast would not reach."""

    def _forward_impl(self, input: Tensor, weight: Tensor, *rest: Any, **named: Any) -> Tensor:
        kind = input.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            input, weight = input.to(dtype), weight.to(dtype)
            if named.get("bias") is not None:
                named["bias"] = named["bias"].to(dtype)
        with torch.autocast(kind, enabled=False):
            found: Tensor = super()._forward_impl(input, weight, *rest, **named)  # type: ignore[misc]
        return found


class _NoExtraState:
    """Megatron-Core's layers put an empty entry into the state dict, which checkpoints must not hold."""

    get_extra_state = nn.Module.get_extra_state
    set_extra_state = nn.Module.set_extra_state


class ColumnLinear(_NoExtraState, _AutocastForward, ColumnParallelLinear):  # type: ignore[misc]
    """A linear of which this rank has some output features."""

    def __init__(self, linear: nn.Linear, config: TransformerConfig, group: ProcessGroup) -> None:
        super().__init__(
            linear.in_features, linear.out_features, config=config, init_method=_no_init, bias=linear.bias is not None,
            gather_output=False, tp_group=group,
        )  # fmt: skip
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.split_dims = {"weight": 0, "bias": 0}

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, F of this rank) from (B, S, F); S are all tokens afterwards where they were split."""
        return _tokens_first(super().forward, x, self.sequence_parallel)


class RowLinear(_NoExtraState, _AutocastForward, RowParallelLinear):  # type: ignore[misc]
    """A linear of which this rank has some input features; see `ColumnLinear`."""

    def __init__(self, linear: nn.Linear, config: TransformerConfig, group: ProcessGroup) -> None:
        super().__init__(
            linear.in_features, linear.out_features, config=config, init_method=_no_init, bias=linear.bias is not None,
            input_is_parallel=True, skip_bias_add=True, tp_group=group,
        )  # fmt: skip
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.split_dims = {"weight": 1}

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, F) from (B, S, F of this rank); S are this rank's tokens afterwards where they are split."""
        summed = _tokens_first(super().forward, x, self.sequence_parallel)
        return summed if self.bias is None else summed + self.bias.to(summed.dtype)


class _InFp8(Fp8Products):
    """Computes the products in FP8; what ranks exchange before and after stays Megatron-Core's."""

    def _forward_impl(self, input: Tensor, weight: Tensor, bias: Tensor | None, **how: Any) -> Tensor:
        if not self.is_on:
            found: Tensor = super()._forward_impl(input, weight, bias=bias, **how)  # type: ignore[misc]
            return found
        if how["sequence_parallel"]:
            input = gather_from_sequence_parallel_region(input, group=how["tp_group"])
        elif how["allreduce_dgrad"]:
            input = copy_to_tensor_model_parallel_region(input, group=how["tp_group"])
        # A column linear's ranks split the features that go out. (Megatron passes a row linear's forward no tp_group.)
        group: Any = self.tp_group
        product = self.product(input, weight, *((None, group) if isinstance(self, ColumnLinear) else (group, None)))
        return product if bias is None else product + bias.to(product.dtype)


class Fp8ColumnLinear(_InFp8, ColumnLinear):
    """A column linear in FP8."""


class Fp8RowLinear(_InFp8, RowLinear):
    """A row linear in FP8."""


class WordEmbedding(VocabParallelEmbedding):  # type: ignore[misc]
    """An embedding of which this rank has some words."""

    def __init__(self, embedding: nn.Embedding, config: TransformerConfig, group: ProcessGroup) -> None:
        super().__init__(
            embedding.num_embeddings, embedding.embedding_dim, init_method=_no_init, config=config, tp_group=group,
            reduce_scatter_embeddings=config.sequence_parallel,
        )  # fmt: skip
        self.split_dims = {"weight": 0}

    def forward(self, words_BS: Tensor) -> Tensor:
        """(B, S, F), of this rank's tokens where they are split."""
        found: Tensor = super().forward(words_BS)
        return found.transpose(0, 1) if self.reduce_scatter_embeddings else found


def _no_init(weight: Tensor) -> Tensor:
    """Draw nothing: weights are the model's own."""
    return weight


def _tokens_first(forward: Callable[[Tensor], tuple[Tensor, Tensor | None]], x: Tensor, sequence: bool) -> Tensor:
    """Call a layer that takes (S, B, F) and gathers or scatters the first dimension, or one that takes rows."""
    if not sequence:
        y = forward(x.reshape(-1, x.shape[-1]))[0]
        return y.view(*x.shape[:-1], y.shape[-1])
    x_SBF = x.transpose(0, 1)
    y, _ = forward(x_SBF.reshape(len(x_SBF), -1, x.shape[-1]))
    return y.view(len(y), *x_SBF.shape[1:-1], y.shape[-1]).transpose(0, 1)


def split(model: nn.Module, mesh: Mesh, group: ProcessGroup, config: TransformerConfig) -> None:
    """Put this rank's part of every linear that the model names in its place, over the tensor ranks of `group`."""
    if mesh.plan.tensor == 1:
        return
    how, names = read_sharding_spec(model), dict(model.named_modules())
    whole = set(_match_linears(how.whole_input, names))
    made: dict[int, nn.Parameter] = {}
    without_sequence = copy.copy(config)  # for layers whose input every rank has whole
    without_sequence.sequence_parallel = False
    for name in _match_linears(how.column, names):
        linear = ColumnLinear(names[name], without_sequence if name in whole else config, group)
        _put(model, name, names[name], linear, mesh, made)
    for name in _match_linears(how.row, names):
        _put(model, name, names[name], RowLinear(names[name], config, group), mesh, made)
    for name in _match_linears(how.vocabulary, names):
        _put(model, name, names[name], WordEmbedding(names[name], config, group), mesh, made)
    for name in _match_linears(how.across_heads, names):
        module: Any = names[name]
        module.weight, module.split_dims = _part(module.weight, 0, mesh), {"weight": 0}
        module.total = partial(_sum_over_ranks, group)
        module.register_state_dict_post_hook(partial(_as_parts, mesh.devices["tensor"]))


def _match_linears(patterns: tuple[str, ...], names: Mapping[str, nn.Module]) -> list[str]:
    # Those of another pipeline stage are hollow.
    return [name for name in match_modules(patterns, names) if names[name].weight is not None]


def _put(
    model: nn.Module, name: str, old: nn.Module, new: nn.Module, mesh: Mesh, made: dict[int, nn.Parameter]
) -> None:
    """Give the new layer this rank's part of the old one's numbers; what was shared stays shared."""
    if ADAPTERS in old._modules:
        raise UserError("Adapters are not split by engine=megatron; use parallel.tensor: 1, or engine=torch.")
    if isinstance(old, Fp8Linear):
        new.__class__ = Fp8ColumnLinear if isinstance(new, ColumnLinear) else Fp8RowLinear
        assert isinstance(new, Fp8Products)
        new.spec, new.history, new.whole_input = old.spec, old.history, old.whole_input
    for key, parameter in old.named_parameters(recurse=False):
        dims: dict[str, int] = new.split_dims  # type: ignore[assignment]
        if id(parameter) not in made:
            made[id(parameter)] = _part(parameter, dims.get(key), mesh)
        setattr(new, key, made[id(parameter)])
    new.register_state_dict_post_hook(partial(_as_parts, mesh.devices["tensor"]))  # type: ignore[no-untyped-call]
    above, _, last = name.rpartition(".")
    model.get_submodule(above)._modules[last] = new


def _part(parameter: nn.Parameter, dim: int | None, mesh: Mesh) -> nn.Parameter:
    own = parameter.detach()
    if dim is not None:
        own = own.chunk(mesh.plan.tensor, dim)[mesh.at.tensor].clone()
    return nn.Parameter(own, requires_grad=parameter.requires_grad)


def _sum_over_ranks(group: ProcessGroup, part: Tensor) -> Tensor:
    """Sums over ranks; its gradient is summed too, because each rank's heads use the result."""
    whole: Tensor = reduce_from_tensor_model_parallel_region(part, group=group)
    return copy_to_tensor_model_parallel_region(whole, group=group)  # type: ignore[no-any-return]


def _as_parts(devices: DeviceMesh, module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
    from torch.distributed.tensor import DTensor, Shard

    dims: dict[str, int] = module.split_dims  # type: ignore[assignment]
    for key, dim in dims.items():
        if (name := f"{prefix}{key}") in state:
            state[name] = DTensor.from_local(state[name], devices, [Shard(dim)], run_check=False)


def split_parameters(model: nn.Module) -> dict[str, int]:
    """Names of the parameters that tensor ranks split, and along which dimension."""
    return {
        f"{name}.{key}": dim
        for name, module in model.named_modules()
        for key, dim in getattr(module, SPLIT_DIMS, {}).items()
        if getattr(module, key, None) is not None
    }
