"""Freezes a model's base weights, excludes them from checkpoints, and stores linears in the autocast dtype.

Autocast casts the weight and bias of a linear at each use. Frozen ones can be stored in that dtype: outputs have the
same bits, with half the memory and no cast. Everything else (norms, tables, embeddings) keeps its dtype.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.plan.adapter_split import is_adapter

_MARK = "only_adapters_learn"


def freeze(model: nn.Module) -> None:
    """Freeze all current parameters, so that only adapters added later are trained."""
    model.requires_grad_(False)
    marked: Any = model
    marked.only_adapters_learn = True


def only_adapters_learn(model: object) -> bool:
    """Return whether `freeze` was called; all pipeline ranks agree, even one without adapters."""
    return bool(getattr(model, _MARK, False))


def learned_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the state that a checkpoint saves: the adapters of a frozen model, else everything."""
    state = dict(model.state_dict())
    return {n: tensor for n, tensor in state.items() if is_adapter(n)} if only_adapters_learn(model) else state


def castable_weights(model: nn.Module) -> set[str]:
    """Return the names that `cast_weights` casts: unshared weights and biases of a frozen model's linears."""
    if not only_adapters_learn(model):
        return set()
    named = list(model.named_parameters(remove_duplicate=False))
    uses = Counter(id(parameter) for _, parameter in named)
    linears = {name for name, module in model.named_modules() if isinstance(module, Linear)}
    unshared = {name for name, parameter in named if uses[id(parameter)] == 1 and not parameter.requires_grad}
    return {name for name in unshared if name.rpartition(".")[0] in linears}


def cast_weights(model: nn.Module, dtype: torch.dtype) -> bool:
    """Cast these parameters and return whether there were any; the model must then run under this autocast dtype."""
    found = castable_weights(model) if dtype != torch.float32 else set()
    for name in found:
        module, _, child = name.rpartition(".")
        weight = model.get_parameter(name).detach().to(dtype)
        model.get_submodule(module).register_parameter(child, nn.Parameter(weight, requires_grad=False))
    return bool(found)
