"""Computes a linear in FP8, whole or split over tensor ranks."""

from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nemo_vfm.core.fp8 import DIVISOR, Fp8
from nemo_vfm.parallel.apply.local_shard import spread
from nemo_vfm.parallel.fp8.amax_history import AmaxHistory
from nemo_vfm.parallel.fp8.linear_products import Operands, products
from nemo_vfm.parallel.fp8.operand_split import OperandSplit
from nemo_vfm.parallel.fp8.operand_stats import OperandStats
from nemo_vfm.parallel.layers.token_layout import active


class Fp8Products(nn.Module):
    """What a linear needs to compute in FP8: how, and the numbers it has seen."""

    spec: Fp8
    history: AmaxHistory | None  #: of delayed scaling
    is_on: bool = True  #: else it computes as it did before
    stats: OperandStats | None = None  #: of the step under way, where somebody looks
    whole_input: bool  #: every context rank has the whole input, such as a text, and only its own part of the gradient

    def product(
        self, x: Tensor, weight_NK: Tensor, inputs: dist.ProcessGroup | None, outputs: dist.ProcessGroup | None
    ) -> Tensor:
        """X W^T, in the dtype of autocast where it is on, else in that of x.

        Args:
            x: (..., K), this rank's part.
            weight_NK: this rank's part.
            inputs: the ranks that split K.
            outputs: those that split N.
        """
        context = active().context
        split = OperandSplit(None if self.whole_input else context, inputs, outputs)
        stats = self.stats if self.training else None
        partial = context if self.whole_input else None
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        weight = weight_NK.to(x.dtype)
        operands = Operands(self.spec, self.history, split, self.training, stats, partial, weight is not weight_NK)
        return products(x, weight, operands)


class Fp8Linear(Fp8Products, nn.Linear):
    """`nn.Linear` in FP8. A linear becomes one by `to_fp8`; its parameters and their names stay.

    Under tensor parallelism its input and weight are DTensors. Products are of this rank's parts, with the scales of
    the whole tensors.
    """

    def forward(self, x: Tensor) -> Tensor:
        """X W^T + b, in the dtype of autocast where it is on, else in that of x.

        Args:
            x: (..., K); rows are padded to what the recipe needs.
        """
        if not self.is_on:
            return super().forward(x)
        side = None if (weight := spread(self.weight)) is None else _Side(weight)
        groups = (None, None) if side is None else side.groups()
        rows, weight_NK = (x, self.weight) if side is None else (side.own(x), side.weight())
        product = self.product(rows, weight_NK, *groups)
        if self.bias is not None:
            product = product + (self.bias if side is None else side.bias(self.bias)).to(product.dtype)
        return product if side is None else side.spread(product)


class _Side:
    """How tensor parallelism splits a linear.

    Args:
        weight: (N, K), sharded over N in a column linear, over K in a row linear.
    """

    def __init__(self, weight: Any) -> None:
        (placement,) = weight.placements
        self._weight, self._mesh = weight, weight.device_mesh
        self.column: bool = placement.is_shard(0)

    def groups(self) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
        """Who splits (K, N)."""
        group = self._mesh.get_group()
        return (None, group) if self.column else (group, None)

    def own(self, x: Any) -> Tensor:
        """This rank's part of the input; that of a column linear is whole, and its gradient a part of a sum."""
        from torch.distributed.tensor import Partial

        own: Tensor = x.to_local(grad_placements=[Partial()]) if self.column else x.to_local()
        return own

    def weight(self) -> Tensor:
        """This rank's part of the weight."""
        own: Tensor = self._weight.to_local()
        return own

    def bias(self, bias: Any) -> Tensor:
        """This rank's part. The sum over a row linear's ranks has a bias once, and its gradient is whole on each."""
        own: Tensor = bias.to_local()
        return own if self.column or self._mesh.get_local_rank() == 0 else own - own.detach()

    def spread(self, y: Tensor) -> Tensor:
        """The output over the ranks."""
        from torch.distributed.tensor import DTensor, Partial, Shard

        placement = Shard(y.ndim - 1) if self.column else Partial()
        return DTensor.from_local(y, self._mesh, [placement], run_check=False)


def to_fp8(linear: nn.Linear, spec: Fp8, *, whole_input: bool = False) -> Fp8Linear:
    """Make a linear compute in FP8. Hooks, adapters and parameters stay the same objects.

    Args:
        linear: with features in and out, on each rank, that are multiples of the recipe's divisor.
        spec: how.
        whole_input: see `Fp8Products`.
    """
    linear.__class__ = _in_fp8(type(linear))  # type: ignore[arg-type]
    assert isinstance(linear, Fp8Linear)
    linear.spec, linear.whole_input = spec, whole_input
    linear.history = AmaxHistory(spec) if spec.recipe == "delayed" else None
    return linear


@cache
def _in_fp8(kind: type[nn.Linear]) -> type[nn.Linear]:
    """A subclass whose forward is that of `Fp8Linear`; what else the class does, it does."""
    return Fp8Linear if kind is nn.Linear else type(f"Fp8{kind.__name__}", (Fp8Linear, kind), {})


def require_divisible(spec: Fp8, name: str, **sizes: int) -> None:
    """Raise ValueError where a size is not what the recipe's products need.

    Args:
        spec: with the recipe.
        name: of the linear.
        sizes: features in and out, on each rank.
    """
    for side, size in sizes.items():
        if size % DIVISOR[spec.recipe]:
            other = "take recipe=current" if size % DIVISOR["current"] == 0 else "stay in bf16"
            raise ValueError(
                f"{name} has {size} {side} on each rank, but FP8 by recipe={spec.recipe} needs multiples of "
                f"{DIVISOR[spec.recipe]}; choose another width or parallel.tensor, or {other}"
            )
