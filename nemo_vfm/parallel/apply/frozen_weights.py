# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps a frozen model's own weights out of checkpoints, and those of its linears in the dtype of the arithmetic.

Autocast rounds the weight and the bias of a linear at each use. Where they never change they may as well be stored
rounded: the products have the same bits, in half the memory and without a copy for each use. Everything else (norms,
tables, embeddings) stays as it is.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from nemo_vfm.parallel.apply.beside_linear import is_adapter
from nemo_vfm.parallel.engine.matmul_support import Linear

_MARK = "only_adapters_learn"


def freeze(model: nn.Module) -> None:
    """Let no weight that is there now learn; what is put beside linears from now on does, alone."""
    model.requires_grad_(False)
    marked: Any = model
    marked.only_adapters_learn = True


def only_adapters_learn(model: object) -> bool:
    """Whether a model has been frozen by `freeze`; every rank of a pipeline says the same, whatever it holds."""
    return bool(getattr(model, _MARK, False))


def learned_state(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint keeps of a model: all of it, or of a frozen one the adapters."""
    state = dict(model.state_dict())
    return {n: tensor for n, tensor in state.items() if is_adapter(n)} if only_adapters_learn(model) else state


def narrowable(model: nn.Module) -> set[str]:
    """The weights and biases that `narrow` narrows: those of a frozen model's linears that no other module has, too."""
    if not only_adapters_learn(model):
        return set()
    places = list(model.named_parameters(remove_duplicate=False))
    uses = Counter(id(parameter) for _, parameter in places)
    linears = {name for name, module in model.named_modules() if isinstance(module, Linear)}
    alone = {name for name, parameter in places if uses[id(parameter)] == 1 and not parameter.requires_grad}
    return {name for name in alone if name.rpartition(".")[0] in linears}


def narrow(model: nn.Module, dtype: torch.dtype) -> bool:
    """Store them in a dtype; whether there were any. From then on the model must be called under its autocast."""
    found = narrowable(model) if dtype != torch.float32 else set()
    for name in found:
        module, _, own = name.rpartition(".")
        weight = model.get_parameter(name).detach().to(dtype)
        model.get_submodule(module).register_parameter(own, nn.Parameter(weight, requires_grad=False))
    return bool(found)
