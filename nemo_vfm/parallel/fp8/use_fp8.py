"""Puts the linears of a model's blocks into FP8, by the plan that the model declares, and keeps their histories."""

from collections.abc import Iterator

import torch
from torch import nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.optional import require
from nemo_vfm.parallel.fp8.amax_history import AmaxHistory
from nemo_vfm.parallel.fp8.fp8_linear import Fp8Products, require_divisible, to_fp8
from nemo_vfm.parallel.plan.sharding_spec import Divisible, match_modules


def use_fp8(model: nn.Module, spec: Fp8, tensor: int = 1) -> list[str]:
    """Let the linears of `large_linears`, which `tensor` ranks will split, compute in FP8, and name them."""
    found = large_linears(model, spec, tensor)
    assert isinstance(model, Divisible)
    texts = match_modules(model.plan().whole_input, found)
    for name, linear in found.items():
        to_fp8(linear, spec, whole_input=name in texts)
    return list(found)


def require_hardware(spec: Fp8) -> None:
    """Refuse what this process's GPU cannot compute; a CPU emulates all of it."""
    if device().type != "cuda":
        return
    if why := spec.objection_to(torch.cuda.get_device_capability(device())):
        raise UserError(f"{why}.")
    if spec.recipe == "block" and (version := torch.version.cuda) and tuple(map(int, version.split(".")[:2])) < (12, 9):
        raise UserError(
            f"block scales need CUDA 12.9 or newer, but this torch is built for {version}; use another "
            f"build, or precision.fp8.recipe=current."
        )
    if spec.kernels == "te":
        try:
            require("transformer_engine.pytorch", purpose="precision.fp8.kernels=te")
        except (RuntimeError, OSError, AssertionError) as error:  # without its kernels, or beside another cuDNN
            raise UserError(
                f"precision.fp8.kernels=te needs Transformer Engine, which is installed but cannot be imported "
                f"({error}). Reinstall transformer-engine[pytorch], or use precision.fp8.kernels=torch."
            ) from error
    if spec.attention:
        raise UserError("attention in FP8 is still emulated, which is slow on a GPU; set fp8.attention to false.")


def large_linears(model: nn.Module, spec: Fp8, tensor: int = 1) -> dict[str, nn.Linear]:
    """The linears that tensor parallelism splits, in the blocks between the ends, by name.

    Embeddings, norms, modulations and the output layer are no such linears, and the head of a language model lies in no
    block.

    Raises:
        UserError: the model declares no plan, its ends are all of its blocks, or a size is not what products in FP8
            need.
    """
    if not isinstance(model, Divisible):
        raise UserError(f"{type(model).__name__} has no plan(), which names the large linears; train it in bf16.")
    how = model.plan()
    if how.one_device:
        raise UserError("a mixture of experts (model.experts) cannot be trained in FP8: experts sometimes get too few "
                        "rows; use precision=bf16.")  # fmt: skip
    names = dict(model.named_modules())
    blocks = names[how.blocks]
    assert isinstance(blocks, nn.ModuleList)
    inner = {f"{how.blocks}.{number}" for number in range(spec.first_bf16, len(blocks) - spec.last_bf16)}
    if not inner:
        raise UserError(
            f"first_bf16 ({spec.first_bf16}) and last_bf16 ({spec.last_bf16}) leave none of {len(blocks)} blocks to "
            f"FP8."
        )
    depth = how.blocks.count(".") + 2
    found = {
        name: module
        for name in match_modules((*how.column, *how.row), names)
        if ".".join(name.split(".")[:depth]) in inner and isinstance(module := names[name], nn.Linear)
    }
    rows = match_modules(how.row, found)
    for name, linear in found.items():
        inputs, outputs = (tensor, 1) if name in rows else (1, tensor)
        sizes = {"in_features": linear.in_features // inputs, "out_features": linear.out_features // outputs}
        try:
            require_divisible(spec, name, **sizes)
        except ValueError as error:
            raise UserError(f"{error}.") from error
    return found


def histories(model: nn.Module) -> dict[str, AmaxHistory]:
    """Those of delayed scaling, by the names of their linears."""
    return {name: module.history for name, module in fp8_linears(model) if module.history is not None}


def fp8_linears(model: nn.Module) -> Iterator[tuple[str, Fp8Products]]:
    """Those of a model or of this rank's part of it, by name."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, Fp8Products))
