# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Puts the linears of a model's blocks into FP8, by the plan that the model declares."""

from typing import Any

from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.parallel.fp8.amax_history import AmaxHistory
from nemo_vfm.parallel.fp8.fp8_linear import Fp8Linear
from nemo_vfm.parallel.plan.sharding_spec import Declared, Divisible, matching


def use_fp8(model: nn.Module, spec: Fp8) -> list[str]:
    """Replace the linears that tensor parallelism splits, in the blocks between the ends; return their names.

    Parameters stay the same objects, under the same names. Embeddings, norms, modulations and the output layer are no
    such linears, and the head of a language model lies in no block.

    Raises:
        UserError: the model declares no plan, or its ends are all of its blocks.
        ValueError: a size is not what products in FP8 need.
    """
    if not isinstance(model, Divisible):
        raise UserError(f"{type(model).__name__} has no plan(), which says which linears are large; train it in bf16")
    names = dict(model.named_modules())
    found = _linears(model.plan(), names, spec)
    replaced = {name: Fp8Linear.of(linear, spec) for name, linear in found.items()}  # all fit, before one is changed
    for name, linear in replaced.items():
        parent, _, own = name.rpartition(".")
        holder: Any = names[parent]
        setattr(holder, own, linear)
    return list(replaced)


def close_step(model: nn.Module) -> None:
    """End the step of every history of delayed scaling; see `AmaxHistory.close_step`."""
    for module in model.modules():
        if isinstance(module, AmaxHistory):
            module.close_step()


def _linears(how: Declared, names: dict[str, nn.Module], spec: Fp8) -> dict[str, nn.Linear]:
    blocks = names[how.blocks]
    assert isinstance(blocks, nn.ModuleList)
    inner = {f"{how.blocks}.{number}" for number in range(spec.first_bf16, len(blocks) - spec.last_bf16)}
    if not inner:
        raise UserError(
            f"first_bf16 ({spec.first_bf16}) and last_bf16 ({spec.last_bf16}) leave none of {len(blocks)} blocks to FP8"
        )
    depth = how.blocks.count(".") + 2
    wanted = (name for pattern in (*how.column, *how.row) for name in matching(pattern, names))
    return {
        name: module
        for name in wanted
        if ".".join(name.split(".")[:depth]) in inner and isinstance(module := names[name], nn.Linear)
    }
