"""Makes stand-ins of inputs, kernels and exchanges, so that one device without data allocates as a GPU or a rank would.

Nothing is exchanged and the numbers mean nothing: only sizes are right.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partialmethod
from math import prod
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from nemo_vfm.core.types.model_traits import HasDummyInputs
from nemo_vfm.parallel.apply.pipeline_stage import Cuttable
from nemo_vfm.parallel.fp8 import fp8_linear
from nemo_vfm.parallel.fp8.fp8_product import emulated_product
from nemo_vfm.parallel.fp8.operands import Operands
from nemo_vfm.parallel.fp8.quantise import Fp8Tensor
from nemo_vfm.parallel.plan.adapter_split import ADAPTERS, ShardableAdapter, TensorSplit
from nemo_vfm.parallel.plan.sharding_spec import match_modules


@contextmanager
def fp8_products_of(*, gpu: bool) -> Iterator[None]:
    """Of a GPU's tensor cores and casts, or of the emulation on a CPU, which has both operands in fp32 as well."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(fp8_linear, "product", _native_product if gpu else _emulate_product))
        if gpu:
            replacement = partialmethod(_quantise_both_ways, Operands.quantise_both_ways)
            stack.enter_context(mock.patch.object(Operands, "quantise_both_ways", replacement))
        yield


def _quantise_both_ways(
    self: Operands, otherwise: Callable[..., tuple[Fp8Tensor | None, Fp8Tensor | None]], x: Tensor, role: str, *,
    rowwise: bool = True, columnwise: bool = False,
) -> tuple[Fp8Tensor | None, Fp8Tensor | None]:  # fmt: skip
    """Elements alone: scales are small, and a program holds what it computes with. Of bf16, as Triton's casts are."""
    if x.dtype != torch.bfloat16:
        return otherwise(self, x, role, rowwise=rowwise, columnwise=columnwise)
    x, dtype = x.contiguous(), self.dtype(role)
    first = Fp8Tensor(torch.empty_like(x, dtype=dtype), x.new_empty(())) if rowwise else None
    second = Fp8Tensor(x.new_empty(x.shape[::-1], dtype=dtype), x.new_empty(())) if columnwise else None
    return first, second


def _emulate_product(a: Fp8Tensor, b: Fp8Tensor, *, fast: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """As on a device without such products; asking torch which dtype to sum in would be one more operation."""
    return emulated_product(a, b).to(dtype)


def _native_product(a: Fp8Tensor, b: Fp8Tensor, *, fast: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """An output, and for a while a copy of each operand that does not lie along the sum."""
    held = [operand.elements.contiguous() for operand in (a, b)]
    product = torch.empty(len(a.elements), len(b.elements), dtype=dtype)
    del held
    return product


class Kernels(TorchFunctionMode):
    """Attention and norms of another machine than this one.

    Attention keeps its operands, its result and a number for each query. Where context ranks pass keys and values
    round a ring, there are two sets of them, and sums in fp32 (`parallel/context/key_exchange.py`). On a GPU autocast
    has norms in fp32.

    Args:
        gpu: whether the machine has one; else attention is this one's own.
        ring: whether tokens are spread over context ranks.
    """

    def __init__(self, *, gpu: bool, ring: bool) -> None:
        super().__init__()
        self._gpu, self._ring = gpu, ring

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        if func is F.scaled_dot_product_attention and (self._gpu or self._ring):
            q, k, v = args[:3]
            if torch.is_autocast_enabled("cpu"):
                q, k, v = (x.to(torch.get_autocast_dtype("cpu")) for x in (q, k, v))
            among_itself = q.shape[2] == k.shape[2] and (kwargs or {}).get("attn_mask") is None
            return _Attention.apply(q, k, v, self._ring and among_itself)  # type: ignore[no-untyped-call]
        if func is F.layer_norm and self._gpu and torch.is_autocast_enabled("cpu"):
            args = (args[0].float(), *args[1:])
        return func(*args, **(kwargs or {}))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: bool) -> Tensor:
        ctx.ring = ring
        held = [*_travelling_keys(k), torch.empty_like(q, dtype=torch.float32)] if ring else []
        out = torch.empty_like(q)
        del held
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:3], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, _, _ = ctx.saved_tensors
        held = [*_travelling_keys(k), *_travelling_keys(k.float()), q.float()] if ctx.ring else []
        found = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None
        del held
        return found


def _travelling_keys(k: Tensor) -> list[Tensor]:
    """Keys and values at hand, and those on their way."""
    return [k.new_empty(2, *k.shape), k.new_empty(2, *k.shape)]


def exchange_as_dtensor(model: Cuttable, ranks: int, sequence: bool) -> None:
    """Let a model, whose linears are parts already, exchange with other tensor ranks what DTensor would."""
    if ranks == 1:
        return
    assert isinstance(model, nn.Module)
    how, modules = model.plan(), dict(model.named_modules())
    for name in match_modules(how.column, modules):
        tokens = sequence and not match_modules(how.whole_input, (name,))
        # A linear's tokens from all ranks; on the way back their sum, or this rank's part of it.
        modules[name].register_forward_pre_hook(
            lambda _, inputs, count=ranks if tokens else 1: _GatherStandIn.apply(inputs[0], count)  # type: ignore[no-untyped-call]
        )
        _split_beside(modules[name], "column", ranks, tokens=tokens)
    for name in match_modules(how.row + how.vocabulary, modules):
        # The sum of what all ranks have, or a part of it.
        modules[name].register_forward_hook(
            lambda _, inputs, output, count=ranks if sequence else 1: _ReduceStandIn.apply(output, count)  # type: ignore[no-untyped-call]
        )
        _split_beside(modules[name], "row", ranks, tokens=sequence)


def _split_beside(linear: nn.Module, kind: Literal["column", "row"], ranks: int, *, tokens: bool) -> None:
    beside: object = linear._modules.get(ADAPTERS)
    if isinstance(beside, ShardableAdapter):
        no_devices: Any = None
        beside.split(_BesideSplit(kind, no_devices, tokens, ranks))


@dataclass(frozen=True, slots=True)
class _BesideSplit(TensorSplit):
    """What exchanges the narrow tensor of an adapter, whose parameters are parts already."""

    ranks: int = 1

    def part(self, parameter: nn.Parameter, dim: int) -> nn.Parameter:
        return parameter

    def redistribute(self, h_BSR: Tensor) -> Tensor:
        """Gathered, or a sum's part."""
        exchange: Any = _GatherStandIn if self.kind == "column" else _ReduceStandIn
        exchanged: Tensor = exchange.apply(h_BSR, self.ranks if self.tokens else 1)
        return exchanged

    def reduce(self, part: Tensor) -> Tensor:
        """As large as it is."""
        return part


class _GatherStandIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x) if ranks == 1 else _gather(x, ranks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _part(grads[0], ctx.ranks), None


class _ReduceStandIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return _part(x, ranks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        return (grad if ctx.ranks == 1 else _gather(grad, ctx.ranks)), None


def _gather(x: Tensor, ranks: int) -> Tensor:
    """Along dim 1; what comes from the wire lies rank by rank, so there are two copies for a while."""
    arrived = x.new_empty(ranks * x.shape[0], *x.shape[1:])
    return torch.cat(arrived.chunk(ranks), 1)


def _part(x: Tensor, ranks: int) -> Tensor:
    """A sum of all, of which one part stays."""
    if ranks == 1:
        return x.clone()
    ordered = torch.cat(x.chunk(ranks, 1))
    return ordered.new_empty(x.shape[0], x.shape[1] // ranks, *x.shape[2:])


Shapes = Mapping[str, tuple[int, ...]]


def fake_inputs(
    model: object, shapes: Shapes, rows: int, tokens: int, multiple: int = 1, part: float = 1.0
) -> tuple[dict[str, Tensor], int]:
    """What the model is called with, and how many tokens a sample of it has.

    Args:
        shapes: of real inputs.
        tokens: of each sample, about.
        multiple: which the tokens are of.
        part: take so much of the tokens.
    """
    if "tokens_BS" in shapes:
        count = _round(tokens, multiple)
        words = torch.empty(rows, int(count * part), dtype=torch.int64)
        found = {"tokens_BS": words, "labels_BS": torch.empty_like(words)}
        if "loss_weight_B" in shapes:
            found["loss_weight_B"] = torch.empty(rows)
        return found, count
    if "latents_BCTHW" not in shapes or not isinstance(model, HasDummyInputs):
        raise ValueError(
            f"what a step of {type(model).__name__} holds is known for inputs tokens_BS or latents_BCTHW, not "
            f"{sorted(shapes)}"
        )
    _, channels, frames, high, wide = model.small_inputs()["latents_BCTHW"]
    smallest = sample_tokens(model, model.small_inputs())
    times = _round(max(1, tokens // smallest), multiple)
    latents = torch.empty(rows, channels, frames, high, int(wide * times * part))
    text = torch.empty(rows, *shapes["text_BLD"][1:])
    return {
        "latents_BCTHW": latents, "text_BLD": text, "text_mask_BL": torch.empty(text.shape[:2], dtype=torch.bool),
        "noise_B": torch.empty(rows), "fps_B": torch.empty(rows),
    }, smallest * times  # fmt: skip


def sample_tokens(model: object, shapes: Shapes) -> int:
    """Tokens of one sample of inputs of these shapes; of packed ones, those of the pack."""
    if "tokens_BS" in shapes:
        return shapes["tokens_BS"][1]
    patch = prod(getattr(model, "patch", (1, 1, 1)))
    if "latents_BCTHW" in shapes:
        return prod(shapes["latents_BCTHW"][2:]) // patch
    raise ValueError(f"tokens are counted for inputs tokens_BS or latents_BCTHW, but these are {sorted(shapes)}")


def _round(size: int, multiple: int) -> int:
    return max(1, size // multiple) * multiple
