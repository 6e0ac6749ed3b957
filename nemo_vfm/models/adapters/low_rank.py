"""Computes the output of a linear with a low-rank adapter: LoRA's s B A x, and DoRA's scaling of the weight's rows.

LoRA: Hu et al. 2021 (arXiv 2106.09685), section 4.1, W' = W + (alpha / rank) B A. DoRA: Liu et al. 2024
(arXiv 2402.09353), equation 5, W' = m (W + s B A) / |W + s B A| with the norm of each row, which is treated as
a constant in backward (section 4.3).
`AdaptedLinear` is a linear with adapters, whose own parameters and names do not change.
A fused linear has one adapter per projection, such as q, k and v, whose rows are interleaved by head.
The code calls these projections parts.
Letters: I inputs of the linear, O outputs of a part, R rank, H heads, E head dimension, P parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.apply.local_shard import full_tensor, local
from nemo_vfm.parallel.layers.linear import Linear, product
from nemo_vfm.parallel.plan.adapter_split import ADAPTERS, TensorSplit

Method = Literal["lora", "dora"]
#: Name of the only part of a linear that is not fused.
WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Rank:
    """Rank and alpha of one projection."""

    rank: int  #: R, columns of B and rows of A
    alpha: float  #: B A is multiplied by alpha / rank

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True)
class FusedProjections:
    """The projections that a linear contains, and how their rows are interleaved."""

    names: tuple[str, ...] = (WHOLE,)  #: of the projections, such as q, k and v
    #: rows of each in every head, or in every group of heads that share a key; empty if there is only one
    sizes: tuple[int, ...] = ()

    def count(self, width: int, name: str) -> int:
        """Return the rows of one projection in a linear with `width` outputs, O."""
        return width if self.names == (WHOLE,) else width // sum(self.sizes) * self.sizes[self.names.index(name)]

    def fuse(self, parts: Mapping[str, Tensor], width: int) -> Tensor:
        """Interleave the projections' outputs, (..., O), into (..., width); missing projections are zeros."""
        if self.names == (WHOLE,):
            return parts[WHOLE]
        some, heads = next(iter(parts.values())), width // sum(self.sizes)
        each = [
            parts[name].unflatten(-1, (heads, size))  # type: ignore[no-untyped-call]
            if name in parts else some.new_zeros(()).expand(*some.shape[:-1], heads, size)
            for name, size in zip(self.names, self.sizes, strict=True)
        ]  # fmt: skip
        return torch.cat(each, -1).flatten(-2)

    def rows(self, fused: Tensor, name: str) -> Tensor:
        """Return the rows of one projection in the linear's weight or bias."""
        if self.names == (WHOLE,):
            return fused
        place = self.names.index(name)
        return fused.unflatten(0, (-1, sum(self.sizes))).split_with_sizes(self.sizes, 1)[place].flatten(0, 1)  # type: ignore[no-any-return, no-untyped-call]


@runtime_checkable
class HasFusedLinears(Protocol):
    """A module with linears that hold several projections."""

    def fused_rows(self) -> Mapping[str, Mapping[str, int]]:
        """Of each such linear the rows of each projection in every head, or in every group that shares a key."""


class LowRank(nn.Module):
    """One adapter of one linear."""

    def __init__(self, linear: nn.Linear, parts: FusedProjections, ranks: Mapping[str, Rank], method: Method) -> None:
        super().__init__()
        self.parts, self.ranks, self.method, self.width = parts, dict(ranks), method, linear.out_features
        self._split: TensorSplit | None = None
        self.strength = 1.0
        like = linear.weight
        for name, rank in self.ranks.items():
            outputs = parts.count(linear.out_features, name)
            self.register_parameter(f"{name}_a", nn.Parameter(like.new_zeros(rank.rank, linear.in_features)))
            self.register_parameter(f"{name}_b", nn.Parameter(like.new_zeros(outputs, rank.rank)))
            if method == "dora":
                self.register_parameter(f"{name}_magnitude", nn.Parameter(like.new_ones(outputs)))

    def forward(self, x: Tensor, output: Tensor, linear: nn.Linear) -> Tensor:
        """Apply the adapter to the linear's output."""
        a_of = [local(self.get_parameter(f"{name}_a")) for name in self.ranks]
        h = product(x, torch.cat(a_of) if len(a_of) > 1 else a_of[0])
        h = h if self._split is None else self._split.redistribute(h)
        split = h.split_with_sizes([rank.rank for rank in self.ranks.values()], -1)
        parts = {}
        for (name, rank), h_part in zip(self.ranks.items(), split, strict=True):
            parts[name] = product(self.strength * rank.scale * h_part, local(self.get_parameter(f"{name}_b")))
        if self.method == "dora":
            factors = {}  # m / |W + s B A|, of the sum (W x + s B A x)
            for name in self.ranks:
                magnitude = local(self.get_parameter(f"{name}_magnitude"))
                factors[name] = (magnitude / self.row_norms(linear, name)).to(output.dtype)
            ones = {name: output.new_ones(self.parts.count(output.shape[-1], name)) for name in self.parts.names}
            factor = self.parts.fuse({**ones, **factors}, output.shape[-1])
            bias = None if linear.bias is None else local(linear.bias).to(output.dtype)
            # A single product, so that backward stores only one tensor of the output's size for the magnitudes.
            changed = (output if bias is None else output - bias) + self.parts.fuse(parts, output.shape[-1])
            return factor * changed if bias is None else torch.addcmul(bias, factor, changed)
        return output + self.parts.fuse(parts, output.shape[-1])

    @torch.no_grad()
    def row_norms(self, linear: nn.Linear, name: str) -> Tensor:
        """Compute the norms |W + s B A| of a projection's rows on this rank, (O,)."""
        with torch.autocast(linear.weight.device.type, enabled=False):
            squares = self.adapted_rows(linear.weight, name).float().square().sum(1)
        return (squares if self._split is None else self._split.reduce(squares)).sqrt()

    def adapted_rows(self, weight: Tensor, name: str) -> Tensor:
        """Compute W + s B A of a projection, (O, I), for this rank's rows or columns."""
        a, b = (local(self.get_parameter(f"{name}_{which}")) for which in "ab")
        return self.parts.rows(local(weight), name) + self.strength * self.ranks[name].scale * (b @ a)

    @torch.no_grad()
    def merge(self, linear: nn.Linear, weight: Tensor) -> Tensor:
        """Merge the adapter into a weight, (width, I), which may already contain earlier adapters."""
        parts = {name: self.parts.rows(weight, name) for name in self.parts.names}
        for name in self.ranks:
            parts[name] = self.adapted_rows(weight, name)
            if self.method == "dora":
                factor = self.get_parameter(f"{name}_magnitude") / self.row_norms(linear, name)
                parts[name] = factor[:, None] * parts[name]
        return self.parts.fuse({name: rows.t() for name, rows in parts.items()}, self.width).t()

    def gather(self) -> "LowRank":
        """Gather a complete copy of an adapter that is split over ranks; every rank must call it."""
        copy = LowRank.__new__(LowRank)
        nn.Module.__init__(copy)
        copy.parts, copy.ranks, copy.method, copy.width = self.parts, self.ranks, self.method, self.width
        copy._split, copy.strength = None, self.strength
        for name, parameter in self.named_parameters():
            copy.register_parameter(name, nn.Parameter(full_tensor(parameter.detach()), requires_grad=False))
        return copy

    def split(self, how: TensorSplit) -> None:
        """Keep this rank's shard of the adapter; see `ShardableAdapter`."""
        self._split = how
        for name in self.ranks:
            a, b = f"{name}_a", f"{name}_b"
            if how.kind == "row":
                setattr(self, a, how.part(self.get_parameter(a), 1))
                continue
            setattr(self, b, how.part(self.get_parameter(b), 0))
            if self.method == "dora":
                setattr(self, f"{name}_magnitude", how.part(self.get_parameter(f"{name}_magnitude"), 0))

    def require_divisible(self, ranks: int) -> None:
        """See `ShardableAdapter`: each rank has whole heads of a fused linear, or groups of heads that share a key."""
        heads = self.width // sum(self.parts.sizes or (1,))
        if self.parts.sizes and heads % ranks:
            raise UserError(f"an adapter of {', '.join(self.parts.names)} cannot be split over {ranks} tensor ranks: "
                            f"there are {heads} heads of keys; set parallel.tensor to a divisor of that")  # fmt: skip


class Adapters(nn.ModuleDict):
    """The adapters of one linear by name."""

    #: Set if every tensor rank has the linear's complete input, so that gradients here need no sum over tokens.
    whole_gradient = False

    def __init__(self) -> None:  # ModuleDict's signature has a type that get_type_hints cannot resolve
        super().__init__()

    def split(self, how: TensorSplit) -> None:
        """Keep this rank's shard of each adapter; see `ShardableAdapter`."""
        for adapter in self.values():
            assert isinstance(adapter, LowRank)
            adapter.split(how)

    def require_divisible(self, ranks: int) -> None:
        for adapter in self.values():
            assert isinstance(adapter, LowRank)
            adapter.require_divisible(ranks)


class AdaptedLinear(Linear):
    """A linear whose adapters modify its output.

    It overrides `__call__`, not `forward`, because tensor parallelism exchanges tensors in hooks around `forward`.
    """

    adapters: Adapters

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute W x + b and apply each adapter in turn."""
        (x,) = args
        output: Tensor = super().__call__(x, **kwargs)
        for adapter in self.adapters.values():
            output = adapter(x, output, self)
        return output


def adapters_of(linear: nn.Linear) -> Adapters:
    """Return a linear's adapters, making it an `AdaptedLinear` first."""
    if not isinstance(linear, AdaptedLinear):
        linear.__class__ = AdaptedLinear
        linear.add_module(ADAPTERS, Adapters())
    assert isinstance(linear, AdaptedLinear)
    return linear.adapters
